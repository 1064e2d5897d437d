//! Decisions of the session between a mount and a proxy: its two halves, which do no I/O.
//!
//! ```text
//!   mount (io/mount)                              proxy (io/proxy)
//!     client: queues ─► calls in flight ──frames──► server: sessions, reply cache ─► execution
//!               ▲              │ disconnect                   │
//!               │              ├─ resumed: sent again ───────►├─ executed: the cached reply
//!               │              └─ restarted: in doubt         └─ unknown: executed
//!               └─ lost writes, written again ◄──verifier, watermark── commits
//! ```
//!
//! Both halves are passed what happens and the time ([`model::Time`]); what they answer is done by the
//! caller: sockets, threads, locks and files are those of `io/`. Where the content of something is not
//! decided here (a call, a connection, a write that is kept), it is a type of the caller.
//!
//! docs/protocol.md section 10 has the messages, docs/decisions/0006 the reasons.

pub mod client;
pub mod server;
