//! Whether a thread that waits in a system call named its file by a descriptor or by a path, and whether it
//! makes one.
//!
//! ```text
//!   /proc/TID/syscall: `NUMBER ARG0 … ARG5 SP PC`, or `running` ─► fchmod, fsetxattr, …? or a path
//! ```
//!
//! The kernel asks for a change of attributes by an inode alone. Where the name that led to the
//! inode is another file by now, a path means that other file and a descriptor this one.

use std::fs;

/// Whether the thread's call names its file by a descriptor. Where that cannot be read (it is another
/// user's, or its kernel shows nothing) it is taken to be so: the kernel would not ask again.
pub(crate) fn by_descriptor(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/syscall"))
        .map_or(true, |call| is_by_descriptor(&call))
}

/// Whether the thread's call creates a name. Linux looks that name up, and returns an error of the
/// look-up to the program without walking again. False if that cannot be read.
pub(crate) fn makes_a_name(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/syscall"))
        .is_ok_and(|call| number_of(&call).is_some_and(is_making_a_name))
}

fn is_making_a_name(number: i64) -> bool {
    match number {
        libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_symlinkat | libc::SYS_linkat => true,
        // The name of a socket.
        libc::SYS_bind => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir | libc::SYS_mknod | libc::SYS_symlink | libc::SYS_link => true,
        _ => false,
    }
}

fn number_of(call: &str) -> Option<i64> {
    call.split_whitespace().next()?.parse().ok()
}

fn is_by_descriptor(call: &str) -> bool {
    let Some(number) = number_of(call) else { return false };
    let words = call.split_whitespace().skip(1);
    let arguments: Vec<u64> = words.map_while(argument).take(6).collect();
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    let empty_path = |at| argument(at) & libc::AT_EMPTY_PATH as u64 != 0;
    match number {
        libc::SYS_fchmod | libc::SYS_fchown | libc::SYS_fsetxattr | libc::SYS_fremovexattr => true,
        // Without a path it is the descriptor's file: futimens(3).
        libc::SYS_utimensat => argument(1) == 0 || empty_path(3),
        libc::SYS_fchownat => empty_path(4),
        SYS_FCHMODAT2 => empty_path(3),
        SYS_SETXATTRAT | SYS_REMOVEXATTRAT => empty_path(2),
        _ => false,
    }
}

fn argument(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

// Younger than the headers of some systems; the same on every processor.
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: i64, arguments: &str) -> bool {
        is_by_descriptor(&format!("{number} {arguments} 0x0 0x0 0x0 0x7ffd0 0x7f00\n"))
    }

    #[test]
    fn calls_on_descriptors_are_told_from_calls_on_paths() {
        assert!(call(libc::SYS_fchmod, "0x3 0x1a4 0x0"));
        assert!(call(libc::SYS_utimensat, "0x3 0x0 0x7ffd"));
        assert!(call(SYS_FCHMODAT2, "0x3 0x7ffd 0x1a4 0x1000"));
        assert!(!call(SYS_FCHMODAT2, "0x3 0x7ffd 0x1a4 0x100"));
        assert!(!call(libc::SYS_utimensat, "0xffffff9c 0x7ffd00 0x7ffd"));
        assert!(!call(libc::SYS_fchmodat, "0xffffff9c 0x7ffd00 0x1a4"));
        assert!(!is_by_descriptor("running\n"));
    }

    #[test]
    fn calls_that_make_names_are_told_from_others() {
        assert!(is_making_a_name(libc::SYS_mkdirat) && is_making_a_name(libc::SYS_linkat));
        assert!(!is_making_a_name(libc::SYS_openat) && !is_making_a_name(libc::SYS_unlinkat));
        assert_eq!((number_of("83 0x1 0x2\n"), number_of("running\n")), (Some(83), None));
        assert!(!makes_a_name(u32::MAX), "there is no such thread");
    }

    #[test]
    fn a_thread_that_cannot_be_looked_at_is_taken_to_have_a_descriptor() {
        assert!(by_descriptor(u32::MAX));
    }
}
