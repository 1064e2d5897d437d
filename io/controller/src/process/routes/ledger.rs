//! Replication of the leader's ledger to standby controllers.
//!
//! ```text
//!   GET /v1/ledger/changes?cursor ─► changes since it ─► 200, bytes for Ledger::apply
//!                                 └► too far behind   ─► 410: copy the whole
//!   GET /v1/ledger/file ─► a copy as a file, its name removed at once ─► 200, piece by piece
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use api::ErrorCode;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use tokio::sync::oneshot;
use tokio_util::io::ReaderStream;

use super::{RouteError, RouteQuery, shutting_down, submit};
use crate::ledger::{ReplicationBatch, ReplicationCursor};
use crate::process::usage;

/// The query parameters: [`ReplicationCursor`], field by field.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CursorQuery {
    born_ns: u64,
    commit: u64,
    term: u64,
    boot: u64,
    generation: u32,
}

/// The changes of the ledger since the last request of a standby controller: bytes for
/// controllers of this version.
#[utoipa::path(
    get,
    path = "/v1/ledger/changes",
    params(
        ("born_ns" = u64, Query, description = "when the copied ledger was created"),
        ("commit" = u64, Query, description = "the last copied commit"),
        ("term" = u64, Query, description = "the term that wrote it"),
        ("boot" = u64, Query, description = "the run of the leader that gave the last copy"),
        ("generation" = u32, Query, description = "the number of that copy"),
    ),
    responses(
        (status = 200, description = "the changes", content_type = "application/octet-stream"),
    ),
    extensions(("x-error-codes" = json!(["cursor_expired"]))),
)]
pub(super) async fn changes(
    State(shared): RouteQuery,
    since: Result<Query<CursorQuery>, QueryRejection>,
) -> Result<Vec<u8>, RouteError> {
    let Query(since) = since?;
    let CursorQuery { born_ns, commit, term, boot, generation } = since;
    let since = ReplicationCursor { born_ns, commit, term, boot, generation };
    let (answer, copied) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Changes { since, answer })?;
    match copied.await.map_err(|_| shutting_down())? {
        Ok(ReplicationBatch::Changes(changes)) => Ok(changes),
        Ok(ReplicationBatch::CopyFile) => {
            let message = format!(
                "commit {commit} of term {term} is not in this ledger; copy the whole ledger"
            );
            Err(RouteError::new(ErrorCode::CursorExpired, message))
        }
        Err(why) => Err(RouteError::new(ErrorCode::StoreFailed, why.to_string())),
    }
}

/// The whole ledger, an SQLite file.
#[utoipa::path(
    get,
    path = "/v1/ledger/file",
    responses(
        (status = 200, description = "the file", content_type = "application/octet-stream"),
    )
)]
pub(super) async fn file(State(shared): RouteQuery) -> Result<ReplicationBytes, RouteError> {
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let path = shared.data.join(format!("copy-{}-{number}.db", std::process::id()));
    let failed = |why: String| RouteError::new(ErrorCode::StoreFailed, why);
    let (answer, saved) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Whole { path: path.clone(), answer })?;
    saved.await.map_err(|_| shutting_down())?.map_err(|why| failed(why.to_string()))?;
    let opened = tokio::fs::File::open(&path).await;
    // Readers have it open; it is removed with the last of them.
    let removed = std::fs::remove_file(&path);
    let file = opened.map_err(|why| failed(format!("{}: {why}", path.display())))?;
    removed.map_err(|why| failed(format!("{}: {why}", path.display())))?;
    Ok((BYTES, Body::from_stream(ReaderStream::with_capacity(file, PIECE_BYTES))))
}

/// The content type of a file.
type ReplicationBytes = ([(HeaderName, &'static str); 1], Body);
const BYTES: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/octet-stream")];
/// Distinguishes copies that are made at the same time.
static COPIES: AtomicU64 = AtomicU64::new(0);
const PIECE_BYTES: usize = 256 << 10;
