//! The calls of `include/sluice.h`: pointers become values, and panics a code.
//!
//! ```text
//!   sluice_x(client, …) ─► guarded: catch_unwind ─► pointers checked ─► reservations, usage
//!        └◄ code ◄─ error and refusal kept for this thread ◄────────────────┘
//! ```
//!
//! The contract of all pointers is that of the header: a pointer is null where that permits it, or
//! valid for the call; texts end with NUL. This is the one file of the library with unsafe code.

#![allow(unsafe_code, reason = "C calls it, with pointers")]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::Once;

use api::{Credentials, NewReservation, WireRefusal};
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::abi::{
    FLAG_EXACT, FLAG_SPEND_CREDIT, FLAG_SPONTANEOUS, SluiceCredit, SluiceDetails, SluicePhase,
    SluiceRefusal, SluiceRequest, SluiceSettings, SluiceUsage, bytes, operations, some,
    state_number,
};
use crate::client::{ControllerClient, LibrarySettings};
use crate::deadline::Deadline;
use crate::error::{CallError, CallErrorCode};
use crate::reservations::WaitEnd;

/// `sluice_client`: a handle that threads may share.
pub struct SluiceClient(ControllerClient);

const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<SluiceClient>();
};

/// The last error of a thread.
#[derive(Default)]
struct ThreadError {
    text: CString,
    refusal: Option<Box<WireRefusal>>,
}

thread_local! {
    static LAST: RefCell<ThreadError> = RefCell::default();
}

// ---- the handle ----

/// See `sluice.h`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// See `sluice.h`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_strerror(code: c_int) -> *const c_char {
    let known = CallErrorCode::ALL.into_iter().find(|known| *known as c_int == code);
    let text = match known {
        None if code >= 0 => c"success",
        None => c"unknown error",
        Some(CallErrorCode::InvalidArgument) => c"invalid argument",
        Some(CallErrorCode::Settings) => c"invalid setting",
        Some(CallErrorCode::Unreachable) => c"no controller can be reached",
        Some(CallErrorCode::TimedOut) => c"the time limit has passed",
        Some(CallErrorCode::Cancelled) => c"the call was cancelled",
        Some(CallErrorCode::DoesNotFit) => c"the reservation does not fit",
        Some(CallErrorCode::LimitReached) => c"a ceiling of reservations is reached",
        Some(CallErrorCode::NotFound) => c"the reservation does not exist or has ended",
        Some(CallErrorCode::Unauthenticated) => c"a token is required or invalid",
        Some(CallErrorCode::PermissionDenied) => c"the token does not permit the call",
        Some(CallErrorCode::Refused) => c"the controller refused the call",
        Some(CallErrorCode::Protocol) => c"the reply is not one of a controller",
        Some(CallErrorCode::Unavailable) => c"no controller leads, or the leader is overloaded",
        Some(CallErrorCode::Untrusted) => c"the other side is not the expected controller",
        Some(CallErrorCode::InDoubt) => c"connection lost: unknown whether the call was executed",
        Some(CallErrorCode::Ended) => c"the reservation ended before it was active",
        Some(CallErrorCode::Internal) => c"internal error",
        Some(CallErrorCode::BufferTooSmall) => c"the buffer is too small",
    };
    text.as_ptr()
}

/// See `sluice.h`.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_error_text() -> *const c_char {
    // The text lives as long as the thread, or until its next error.
    let read = || LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr());
    catch_unwind(read).unwrap_or(c"".as_ptr())
}

/// See `sluice.h`.
///
/// # Safety
/// `settings` is null or valid; `client` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_open(
    settings: *const SluiceSettings,
    client: *mut *mut SluiceClient,
) -> c_int {
    silence_panics();
    guarded(|| {
        if client.is_null() {
            return Err(CallError::argument("client is NULL"));
        }
        // SAFETY: not null, and the caller's to write, by the contract of the header.
        unsafe { client.write(ptr::null_mut()) };
        let mut wanted = LibrarySettings::default();
        if !settings.is_null() {
            // SAFETY: not null; the size is read before anything else, and refused if it differs.
            let settings = unsafe { sized(settings, "sluice_settings") }?;
            let file = |path, name| Ok::<_, CallError>(text_of(path, name)?.map(PathBuf::from));
            wanted.controller = text_of(settings.controller, "controller")?;
            wanted.credentials = Credentials {
                ca: file(settings.ca_file, "ca_file")?,
                token_file: file(settings.token_file, "token_file")?,
                token: None,
                cert: file(settings.cert_file, "cert_file")?,
                key: file(settings.key_file, "key_file")?,
            };
        }
        if !has_more_rights() {
            wanted = wanted.with_environment()?;
        }
        let opened = Box::new(SluiceClient(ControllerClient::open(wanted)?));
        // SAFETY: as above.
        unsafe { client.write(Box::into_raw(opened)) };
        Ok(0)
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` is null, or comes from `sluice_open` and no call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_close(client: *mut SluiceClient) {
    guarded(|| {
        if !client.is_null() {
            // SAFETY: from Box::into_raw in sluice_open, and closed once, by the contract.
            drop(unsafe { Box::from_raw(client) });
        }
        Ok(0)
    });
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_cancel(client: *mut SluiceClient) -> c_int {
    guarded(|| Ok(handle(client)?.calls.cancel() as c_int))
}

// ---- reservations ----

/// See `sluice.h`.
///
/// # Safety
/// All pointers are valid by the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_add_reservation_async(
    client: *mut SluiceClient,
    request: *const SluiceRequest,
    limit_ms: u32,
    id: *mut u64,
) -> c_int {
    clear(id);
    within(client, limit_ms, |client, deadline| {
        put(id, 0, "id")?;
        put(id, client.add(request_of(request)?, deadline)?.id, "id")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// All pointers are valid by the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_add_reservation_sync(
    client: *mut SluiceClient,
    request: *const SluiceRequest,
    limit_ms: u32,
    id: *mut u64,
) -> c_int {
    clear(id);
    within(client, limit_ms, |client, deadline| {
        put(id, 0, "id")?;
        let made = client.add(request_of(request)?, deadline)?.id;
        put(id, made, "id")?;
        match client.wait(made, true, deadline)? {
            WaitEnd::Active => Ok(0),
            WaitEnd::Ended => {
                let text = format!("reservation {made} ended before it was active");
                Err(CallError::new(CallErrorCode::Ended, text))
            }
            WaitEnd::TimedOut => {
                let text = format!("reservation {made} was not active within {limit_ms} ms");
                Err(CallError::new(CallErrorCode::TimedOut, text))
            }
        }
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_test_reservation(
    client: *mut SluiceClient,
    id: u64,
    limit_ms: u32,
) -> c_int {
    within(client, limit_ms, |client, deadline| client.test(id, deadline).map(state_number))
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_wait_reservation(
    client: *mut SluiceClient,
    id: u64,
    limit_ms: u32,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        Ok(match client.wait(id, false, deadline)? {
            WaitEnd::Active => 2,
            WaitEnd::TimedOut => 1,
            WaitEnd::Ended => 0,
        })
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_remove_reservation(
    client: *mut SluiceClient,
    id: u64,
    limit_ms: u32,
) -> c_int {
    within(client, limit_ms, |client, deadline| client.remove(id, deadline).map(c_int::from))
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `credit_bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_finish_reservation(
    client: *mut SluiceClient,
    id: u64,
    limit_ms: u32,
    credit_bytes: *mut u64,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        put_if_wanted(credit_bytes, client.finish(id, deadline)?)
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `end_ns` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_extend_reservation(
    client: *mut SluiceClient,
    id: u64,
    more_ns: u64,
    limit_ms: u32,
    end_ns: *mut u64,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        put_if_wanted(end_ns, client.extend(id, more_ns, deadline)?)
    })
}

/// See `sluice.h`.
///
/// # Safety
/// All pointers are valid by the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_begin_phase(
    client: *mut SluiceClient,
    id: u64,
    phase: *const SluicePhase,
    limit_ms: u32,
    phase_id: *mut u64,
) -> c_int {
    clear(phase_id);
    within(client, limit_ms, |client, deadline| {
        put(phase_id, 0, "phase_id")?;
        let phase = phase_of(phase)?;
        if phase.start_ns() != 0 {
            let text = "start_ns of a phase that begins now is not 0; use sluice_expect_phase";
            return Err(CallError::argument(text));
        }
        put(phase_id, client.add_phase(id, phase.to_added()?, deadline)?.id, "phase_id")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// All pointers are valid by the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_expect_phase(
    client: *mut SluiceClient,
    id: u64,
    phase: *const SluicePhase,
    limit_ms: u32,
    phase_id: *mut u64,
) -> c_int {
    clear(phase_id);
    within(client, limit_ms, |client, deadline| {
        put(phase_id, 0, "phase_id")?;
        let phase = phase_of(phase)?.to_added()?;
        if phase.not_before_ns.is_none() {
            let text = "start_ns of an expected phase is 0; give nanoseconds since 1970";
            return Err(CallError::argument(text));
        }
        put(phase_id, client.add_phase(id, phase, deadline)?.id, "phase_id")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_end_phase(
    client: *mut SluiceClient,
    phase_id: u64,
    limit_ms: u32,
) -> c_int {
    within(client, limit_ms, |client, deadline| match client.finish(phase_id, deadline) {
        Err(error) if error.code == CallErrorCode::NotFound => Ok(0),
        finished => finished.map(|_| 1),
    })
}

// ---- what a caller may see ----

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `details` is valid, with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_details(
    client: *mut SluiceClient,
    id: u64,
    limit_ms: u32,
    details: *mut SluiceDetails,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        // SAFETY: null or valid with its size, by the contract of the header.
        unsafe { sized(details, "sluice_details") }?;
        put(details, SluiceDetails::of(&client.details(id, deadline)?), "details")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `refusal` is valid, with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_refusal(refusal: *mut SluiceRefusal) -> c_int {
    let read = || {
        // SAFETY: null or valid with its size, by the contract of the header.
        unsafe { sized(refusal, "sluice_refusal") }?;
        let last = LAST.try_with(|last| last.borrow().refusal.as_deref().map(SluiceRefusal::of));
        match last.ok().flatten() {
            Some(last) => put(refusal, last, "refusal"),
            None => Err(CallError::new(CallErrorCode::NotFound, "the last error is not a refusal")),
        }
    };
    // The last error stays as it is: this only reads it.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(outcome) => outcome.unwrap_or_else(|error| error.code as c_int),
        Err(_) => CallErrorCode::Internal as c_int,
    }
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `job` is null or text; `usage` is valid, with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_usage(
    client: *mut SluiceClient,
    job: *const c_char,
    since_s: u32,
    limit_ms: u32,
    usage: *mut SluiceUsage,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        // SAFETY: null or valid with its size, by the contract of the header.
        unsafe { sized(usage, "sluice_usage") }?;
        let job = text_of(job, "job")?;
        put(usage, SluiceUsage::of(client.usage(job.as_deref(), since_s, deadline)?), "usage")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `credit` is valid, with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_credit(
    client: *mut SluiceClient,
    limit_ms: u32,
    credit: *mut SluiceCredit,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        // SAFETY: null or valid with its size, by the contract of the header.
        unsafe { sized(credit, "sluice_credit") }?;
        put(credit, SluiceCredit::of(&client.credit(deadline)?), "credit")
    })
}

/// See `sluice.h`.
///
/// # Safety
/// `client` comes from `sluice_open`; `job` is null or text; `buffer` has `size` bytes; `needed` is
/// null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_get_why(
    client: *mut SluiceClient,
    job: *const c_char,
    limit_ms: u32,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> c_int {
    within(client, limit_ms, |client, deadline| {
        let json = client.why(text_of(job, "job")?.as_deref(), deadline)?;
        put_if_wanted(needed, json.len() + 1)?;
        if buffer.is_null() || size <= json.len() {
            let text = format!("buffer has {size} bytes and the text {}", json.len() + 1);
            return Err(CallError::new(CallErrorCode::BufferTooSmall, text));
        }
        // SAFETY: the buffer is not null, has more than these bytes by its size, and is the
        // caller's alone during the call.
        unsafe {
            ptr::copy_nonoverlapping(json.as_ptr(), buffer.cast(), json.len());
            buffer.add(json.len()).write(0);
        }
        Ok(0)
    })
}

// ---- pointers and errors ----

/// Runs a call, keeps its error for this thread, and lets no panic out.
fn guarded(call: impl FnOnce() -> Result<c_int, CallError>) -> c_int {
    let outcome =
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    let error = match outcome {
        Ok(code) => return code,
        Err(error) => error,
    };
    let code = error.code as c_int;
    let kept = ThreadError {
        text: CString::new(error.text.replace('\0', " ")).unwrap_or_default(),
        refusal: error.refusal,
    };
    // While a thread ends it has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(kept));
    code
}

/// Runs a call on a handle within its time limit, and lets other threads cancel it.
fn within(
    client: *mut SluiceClient,
    limit_ms: u32,
    call: impl FnOnce(&ControllerClient, Deadline<'_>) -> Result<c_int, CallError>,
) -> c_int {
    guarded(|| {
        let client = handle(client)?;
        if limit_ms == 0 {
            return Err(CallError::argument("limit_ms is 0; give 1 to 4294967295 milliseconds"));
        }
        let under_way = client.calls.begin()?;
        call(client, Deadline::new(limit_ms, &under_way))
    })
}

fn panicked(panic: &(dyn Any + Send)) -> CallError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    CallError::new(CallErrorCode::Internal, format!("an error within the library: {text}"))
}

/// Panics print nothing. The hook is that of this library's own Rust runtime; no other Rust code of
/// the program has it.
fn silence_panics() {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

fn handle<'a>(client: *mut SluiceClient) -> Result<&'a ControllerClient, CallError> {
    // SAFETY: null or from sluice_open and not closed, by the contract of the header. Threads share
    // it: it is Sync.
    let client = unsafe { client.as_ref() };
    client.map(|client| &client.0).ok_or_else(|| CallError::argument("client is NULL"))
}

/// Reads a struct whose first field is its size.
///
/// # Safety
/// The pointer is null, or valid for as many bytes as its first field says.
unsafe fn sized<T: Copy>(from: *const T, name: &str) -> Result<T, CallError> {
    if from.is_null() {
        return Err(CallError::argument(format!("{name} is NULL")));
    }
    // SAFETY: at least the size is there, by the contract.
    let size = unsafe { from.cast::<usize>().read() };
    if size != size_of::<T>() {
        let expected = size_of::<T>();
        return Err(CallError::argument(format!(
            "{name}.struct_size is {size}, and {expected} is expected: begin with the initializer"
        )));
    }
    // SAFETY: it has the size of T by its own field, and every T here is plain data.
    Ok(unsafe { from.read() })
}

fn put<T>(to: *mut T, value: T, name: &str) -> Result<c_int, CallError> {
    if to.is_null() {
        return Err(CallError::argument(format!("{name} is NULL")));
    }
    put_if_wanted(to, value)
}

fn put_if_wanted<T>(to: *mut T, value: T) -> Result<c_int, CallError> {
    if !to.is_null() {
        // SAFETY: not null, and the caller's to write, by the contract of the header.
        unsafe { to.write(value) };
    }
    Ok(0)
}

/// Writes 0 before anything can fail, so that no number of an earlier call is taken for this one's.
fn clear(number: *mut u64) {
    // Without a place for it there is nothing to clear.
    let _ = put_if_wanted(number, 0);
}

/// Whether the program was started with other rights than those of its caller: as another user or
/// group, or with capabilities of its file. It stays so when the program changes its ids. Who starts
/// it does not choose who gets its token.
fn has_more_rights() -> bool {
    unsafe extern "C" {
        fn getauxval(kind: c_ulong) -> c_ulong;
    }
    // SAFETY: it reads what the kernel gave the process, and has no state.
    let is_secure = unsafe { getauxval(AT_SECURE) } != 0;
    is_secure || getuid() != geteuid() || getgid() != getegid()
}

/// The kind of the value by which the kernel says so, getauxval(3).
const AT_SECURE: c_ulong = 23;

fn text_of(text: *const c_char, name: &str) -> Result<Option<String>, CallError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and ends with NUL, by the contract of the header.
    let text = unsafe { CStr::from_ptr(text) };
    if text.count_bytes() > TEXT_BYTES_MAX {
        return Err(CallError::argument(format!("{name} has more than {TEXT_BYTES_MAX} bytes")));
    }
    let text = text.to_str().map_err(|_| CallError::argument(format!("{name} is not UTF-8")))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

fn phase_of(phase: *const SluicePhase) -> Result<SluicePhase, CallError> {
    // SAFETY: null or valid, by the contract of the header.
    let phase = unsafe { phase.as_ref() };
    phase.copied().ok_or_else(|| CallError::argument("phase is NULL"))
}

fn request_of(request: *const SluiceRequest) -> Result<NewReservation, CallError> {
    // SAFETY: null or valid with its size, by the contract of the header.
    let request = unsafe { sized(request, "sluice_request") }?;
    let unknown = request.flags & !(FLAG_EXACT | FLAG_SPONTANEOUS | FLAG_SPEND_CREDIT);
    if unknown != 0 {
        return Err(CallError::argument(format!("flags has unknown bits {unknown:#x}")));
    }
    if request.duration_ns == 0 {
        return Err(CallError::argument("duration_ns is 0; give the length in nanoseconds"));
    }
    if request.phase_count > PHASES_MAX || request.phase_count > 0 && request.phases.is_null() {
        let count = request.phase_count;
        return Err(CallError::argument(format!("phase_count is {count}; 0 to 64 are accepted")));
    }
    let mut phases = Vec::new();
    for at in 0..request.phase_count {
        // SAFETY: the array is not null and has that many, by the contract of the header.
        phases.push(unsafe { request.phases.add(at).read() }.to_new()?);
    }
    let place = text_of(request.path, "path")?.map(|path| crate::place::ReservedPlace::find(&path));
    let place = place.transpose()?.unwrap_or_default();
    Ok(NewReservation {
        read: bytes(request.read_bytes_per_s),
        write: bytes(request.write_bytes_per_s),
        metadata: operations(request.metadata_ops_per_s),
        duration_ns: request.duration_ns,
        not_before_ns: some(request.not_before_ns),
        exact: request.flags & FLAG_EXACT != 0,
        by_ns: some(request.by_ns),
        after: some(request.after),
        spontaneous: request.flags & FLAG_SPONTANEOUS != 0,
        claim_window_ns: request.claim_window_ns,
        spend_credit: request.flags & FLAG_SPEND_CREDIT != 0,
        job: text_of(request.job, "job")?,
        export: Some(place.export).filter(|export| !export.is_empty()),
        directory: place.directory,
        nodes: Some(request.nodes).filter(|nodes| *nodes != 0),
        phases,
        idempotency_key: text_of(request.idempotency_key, "idempotency_key")?,
        ..NewReservation::default()
    })
}

/// The longest text of an argument: a path has up to 4,096 bytes.
const TEXT_BYTES_MAX: usize = 8_192;
/// The most phases of a request.
const PHASES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        // SAFETY: it is a text of this thread, which makes no call meanwhile.
        unsafe { CStr::from_ptr(sluice_error_text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_with_its_text() {
        assert_eq!(guarded(|| panic!("a bug")), CallErrorCode::Internal as c_int);
        assert_eq!(last_text(), "an error within the library: a bug");
        assert_eq!(guarded(|| Err(CallError::argument("a\0b"))), -1);
        assert_eq!(last_text(), "a b");
        let other = std::thread::spawn(last_text).join().unwrap();
        assert_eq!(other, "", "errors are those of a thread");
    }

    #[test]
    fn every_code_has_a_text_and_its_number_in_the_header() {
        let header = include_str!("../include/sluice.h");
        let number = |line: &str| line.split_once(" = ")?.1.trim_end_matches(',').parse().ok();
        let in_header: Vec<i32> = header
            .lines()
            .filter(|line| line.trim_start().starts_with("SLUICE_ERROR_"))
            .filter_map(number)
            .collect();
        let codes: Vec<i32> = CallErrorCode::ALL.iter().map(|code| *code as i32).collect();
        assert_eq!(in_header, codes);
        for code in codes {
            // SAFETY: a text that is never freed.
            let text = unsafe { CStr::from_ptr(sluice_strerror(code)) };
            assert_ne!(text, c"unknown error", "{code}");
        }
    }
}
