//! The tests of both halves of a session, as one program.

mod exactly_once;
