//! SQLite files of a controller: opened in the same way, identified by kind and format.
//!
//! ```text
//!   no file ──► made 0600, tables, kind and format written ─┐
//!   a file ───► others may not write it, kind and format ───┴─► write-ahead log, synced at each
//!               are ours? ─no─► refused, named                  commit, 0600 as SQLite sees to
//! ```
//!
//! `synchronous = FULL`: an acknowledged commit survives a loss of power.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::PrivateFileError;
use rusqlite::{Connection, TransactionBehavior};

/// The kind of a file; SQLite keeps the two numbers in the file's header.
pub(crate) struct FileKind {
    /// Identifies files of this program and kind.
    pub(crate) application_id: i32,
    /// The format of its tables.
    pub(crate) format: i32,
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The statements that make the tables.
    pub(crate) schema: &'static str,
}

/// An error of a file.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    /// SQLite failed at it.
    #[error("{}: {source}; put the {what} on a writable file system with free space", path.display())]
    Failed {
        /// The path of the file.
        path: PathBuf,
        /// The expected kind of file, such as a ledger.
        what: &'static str,
        /// The error of SQLite.
        #[source]
        source: rusqlite::Error,
    },
    /// Other users could have written it.
    #[error(transparent)]
    Private(#[from] PrivateFileError),
    /// It cannot be created.
    #[error("cannot create {}", path.display())]
    Make {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is another program's, or of another kind or format.
    #[error(
        "{} is not a {what} of format {format} (it says kind {found_id:#x}, format {found_format}); name another file, or move this one away",
        path.display()
    )]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The expected kind of file, such as a ledger.
        what: &'static str,
        /// The number of the expected format.
        format: i32,
        /// The kind that the file names.
        found_id: i32,
        /// The format that the file names.
        found_format: i32,
    },
}

impl FileKind {
    /// Opens the file at `path`, and creates it if it does not exist.
    pub(crate) fn open(&self, path: &Path) -> Result<Connection, SqliteError> {
        let failed = |source| self.failed(path, source);
        make_private(path)?;
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(BUSY).map_err(failed)?;
        let number = |connection: &Connection, name: &str| {
            connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(failed)
        };
        let (id, format) =
            (number(&connection, "application_id")?, number(&connection, "user_version")?);
        let tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(failed)?;
        let empty = id == 0 && format == 0 && tables == 0;
        if !empty && (id != self.application_id || format != self.format) {
            return Err(SqliteError::Foreign {
                path: path.into(),
                what: self.name,
                format: self.format,
                found_id: id,
                found_format: format,
            });
        }
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            .map_err(failed)?;
        if empty {
            self.make(&mut connection).map_err(failed)?;
        }
        Ok(connection)
    }

    /// Makes an error of SQLite at the file `path`.
    pub(crate) fn failed(&self, path: &Path, source: rusqlite::Error) -> SqliteError {
        SqliteError::Failed { path: path.into(), what: self.name, source }
    }

    /// Creates the tables in one transaction, so that a file is complete or empty.
    fn make(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(self.schema)?;
        transaction.pragma_update(None, "application_id", self.application_id)?;
        transaction.pragma_update(None, "user_version", self.format)?;
        transaction.commit()
    }
}

/// Creates an empty file that only its owner may read, or checks the existing one and SQLite's
/// files beside it. SQLite gives its other files the permissions of the first.
pub(crate) fn make_private(path: &Path) -> Result<(), SqliteError> {
    let mut exists = false;
    for beside in ["-wal", "-shm", "-journal", ""] {
        let mut name = path.as_os_str().to_owned();
        name.push(beside);
        exists = api::check_private(Path::new(&name))?;
    }
    if !exists {
        let made = api::private_options().write(true).create_new(true).open(path);
        made.map_err(|source| SqliteError::Make { path: path.into(), source })?;
    }
    Ok(())
}

/// The longest time for which another reader (a backup, an administrator) may lock the file.
const BUSY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TestFolder;

    const KIND: FileKind = FileKind {
        application_id: 0x51_75_00_7f,
        format: 3,
        name: "list of things",
        schema: "CREATE TABLE thing (id INTEGER PRIMARY KEY)",
    };

    #[test]
    fn a_file_of_another_program_or_format_is_refused_and_named() {
        let folder = TestFolder::new();
        let path = folder.path().join("x.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE alien (a)").unwrap();
        let error = KIND.open(&path).unwrap_err().to_string();
        assert!(error.contains("x.db is not a list of things of format 3"), "{error}");

        let path = folder.path().join("y.db");
        drop(KIND.open(&path).unwrap());
        drop(KIND.open(&path).unwrap());
        let newer = FileKind { format: 4, ..KIND };
        assert!(matches!(newer.open(&path), Err(SqliteError::Foreign { found_format: 3, .. })));
    }

    #[test]
    fn a_file_that_is_no_database_is_named() {
        let folder = TestFolder::new();
        let path = folder.path().join("z.db");
        std::fs::write(&path, "not a database, but long enough to be looked at".repeat(50))
            .unwrap();
        let error = KIND.open(&path).unwrap_err().to_string();
        assert!(error.contains("z.db"), "{error}");
    }
}
