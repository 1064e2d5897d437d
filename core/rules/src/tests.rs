//! Tests of whole rule files: what is read, what is refused and where, what is written.

mod decay;
mod docs;
mod edit;
mod export;
mod file;
mod props;
mod refused;
