//! The first request of a connection, FUSE_INIT: what both sides can do.
//!
//! ```text
//!   kernel: version, capabilities, readahead ─► the smaller of each ─► FuseConnection
//!                                 wishes (Options) ─┘
//! ```
//!
//! A kernel with a newer major version receives ours and asks once more. A kernel before 7.31
//! (Linux 5.4) is refused.

use crate::abi::{IN_HEADER_LEN, InHeader, MINOR, MINOR_MIN, Opcode, PAGE, VERSION};
use crate::device::{DeviceInbox, FuseDevice};
use crate::fields::{FieldReader, FieldWriter, Malformed};
use crate::flags::Capabilities;
use crate::options::{MAX_WRITE, Options, Transport};
use crate::request::FuseRequestId;

use rustix::io::Errno;
use std::io::IoSlice;

/// Result of negotiating a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseConnection {
    /// Minor version of the protocol (7.x) that is spoken.
    pub minor: u32,
    /// The features that both sides use.
    pub capabilities: Capabilities,
    /// The features that the kernel offered.
    pub offered: Capabilities,
    /// Bytes in the largest write.
    pub max_write: u32,
    /// Bytes that the kernel reads ahead at most.
    pub max_readahead: u32,
    /// How requests travel: as was asked, if the kernel can.
    pub transport: Transport,
}

/// Why kernel and file system did not come to terms.
#[derive(Debug, thiserror::Error)]
pub enum NegotiateError {
    /// The kernel's protocol is too old.
    #[error("the kernel speaks FUSE {major}.{minor}, not {VERSION}.{MINOR_MIN} or later")]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// The first request was another one, or shorter than its structure.
    #[error("the first request of the connection is not FUSE_INIT")]
    NotInit,
    /// Reading or answering failed.
    #[error("/dev/fuse: {0}")]
    Device(#[from] Errno),
}

impl From<Malformed> for NegotiateError {
    fn from(_: Malformed) -> NegotiateError {
        NegotiateError::NotInit
    }
}

/// The kernel's offer of a connection.
#[derive(Clone, Copy, Debug)]
struct KernelInit {
    major: u32,
    minor: u32,
    max_readahead: u32,
    capabilities: Capabilities,
}

/// Answers the kernel's first request.
pub(crate) fn negotiate(
    device: &FuseDevice,
    inbox: &mut DeviceInbox,
    options: &Options,
) -> Result<FuseConnection, NegotiateError> {
    loop {
        let bytes = device.receive(inbox)?;
        let (id, offer) = parse_init(bytes)?;
        if offer.major > VERSION {
            let mut put = FieldWriter::new();
            put.u32(VERSION);
            put.u32(MINOR);
            device.answer(id, &[IoSlice::new(put.as_slice())]);
            continue;
        }
        if offer.major < VERSION || offer.minor < MINOR_MIN {
            device.answer_error(id, Errno::PROTO);
            return Err(NegotiateError::TooOld { major: offer.major, minor: offer.minor });
        }
        let connection = agree(&offer, options);
        let mut put = FieldWriter::new();
        write_reply(&connection, options, &mut put);
        device.answer(id, &[IoSlice::new(put.as_slice())]);
        return Ok(connection);
    }
}

fn parse_init(bytes: &[u8]) -> Result<(FuseRequestId, KernelInit), NegotiateError> {
    let header = InHeader::parse(bytes)?;
    if Opcode::new(header.opcode) != Some(Opcode::Init) {
        return Err(NegotiateError::NotInit);
    }
    let mut from = FieldReader::new(&bytes[IN_HEADER_LEN..], &[]);
    let (major, minor) = (from.u32("major")?, from.u32("minor")?);
    let (max_readahead, low) = (from.u32("max_readahead")?, from.u32("flags")?);
    let extended = Capabilities::from_bits(low.into()).contains(Capabilities::INIT_EXT);
    let high = if extended { from.u32("flags2")? } else { 0 };
    let capabilities = Capabilities::from_bits(u64::from(high) << 32 | u64::from(low));
    Ok((header.request.id, KernelInit { major, minor, max_readahead, capabilities }))
}

fn agree(offer: &KernelInit, options: &Options) -> FuseConnection {
    let mut wanted = options.capabilities | Capabilities::INIT_EXT;
    if options.request_timeout_s > 0 {
        wanted |= Capabilities::REQUEST_TIMEOUT;
    }
    if options.transport == Transport::Ring {
        wanted |= Capabilities::OVER_IO_URING;
    }
    let capabilities = wanted & offer.capabilities;
    let ring = capabilities.contains(Capabilities::OVER_IO_URING);
    // Without MAX_PAGES the kernel sends 32 pages at most, whatever is asked for.
    let limit =
        if capabilities.contains(Capabilities::MAX_PAGES) { MAX_WRITE } else { 32 * PAGE as u32 };
    let pages = options.max_write.clamp(PAGE as u32, limit) / PAGE as u32;
    FuseConnection {
        minor: offer.minor.min(MINOR),
        capabilities,
        offered: offer.capabilities,
        max_write: pages * PAGE as u32,
        max_readahead: options.max_readahead.min(offer.max_readahead),
        transport: if ring { Transport::Ring } else { Transport::Device },
    }
}

fn write_reply(connection: &FuseConnection, options: &Options, to: &mut FieldWriter) {
    let bits = connection.capabilities.bits();
    let pages = connection.max_write / PAGE as u32;
    to.u32(VERSION);
    to.u32(MINOR);
    to.u32(connection.max_readahead);
    to.u32(bits as u32);
    to.u16(options.max_background);
    to.u16(options.congestion_threshold);
    to.u32(connection.max_write);
    to.u32(options.time_grain_ns);
    to.u16(u16::try_from(pages).expect("256 pages at most"));
    to.u16(0);
    to.u32((bits >> 32) as u32);
    // Backing files may themselves lie on one file system that has backing files.
    to.u32(u32::from(connection.capabilities.contains(Capabilities::PASSTHROUGH)));
    to.u16(options.request_timeout_s);
    to.zeros(11 * 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(capabilities: Capabilities) -> KernelInit {
        let capabilities = capabilities | Capabilities::INIT_EXT;
        KernelInit { major: 7, minor: 45, max_readahead: 131_072, capabilities }
    }

    #[test]
    fn what_both_want_is_agreed() {
        let options = Options {
            capabilities: Capabilities::POSIX_ACL | Capabilities::PASSTHROUGH,
            ..Options::default()
        };
        let connection =
            agree(&offer(Capabilities::PASSTHROUGH | Capabilities::MAX_PAGES), &options);
        assert_eq!(connection.capabilities, Capabilities::PASSTHROUGH | Capabilities::INIT_EXT);
        assert_eq!(connection.max_readahead, 131_072);
        assert_eq!(connection.transport, Transport::Device);
    }

    #[test]
    fn the_ring_is_used_if_both_can() {
        let options = Options { transport: Transport::Ring, ..Options::default() };
        let with = agree(&offer(Capabilities::OVER_IO_URING), &options);
        assert_eq!(with.transport, Transport::Ring);
        assert_eq!(agree(&offer(Capabilities::NONE), &options).transport, Transport::Device);
        let plain = agree(&offer(Capabilities::OVER_IO_URING), &Options::default());
        assert_eq!((plain.transport, plain.capabilities.bits() >> 41), (Transport::Device, 0));
    }

    #[test]
    fn the_largest_write_is_whole_pages_within_what_is_agreed() {
        let large = offer(Capabilities::MAX_PAGES);
        let write = |max_write, offer: &KernelInit| {
            agree(offer, &Options { max_write, ..Options::default() }).max_write
        };
        assert_eq!(write(1 << 20, &large), 1 << 20);
        assert_eq!(write(1 << 30, &large), 1 << 20);
        assert_eq!(write(10_000, &large), 8192);
        assert_eq!(write(0, &large), 4096);
        assert_eq!(write(1 << 20, &offer(Capabilities::NONE)), 128 << 10);
    }

    #[test]
    fn terms_have_the_length_that_the_kernel_expects() {
        let options = Options { request_timeout_s: 9, ..Options::default() };
        let connection =
            agree(&offer(Capabilities::DEFAULT | Capabilities::REQUEST_TIMEOUT), &options);
        let mut put = FieldWriter::new();
        write_reply(&connection, &options, &mut put);
        let terms = put.as_slice();
        assert_eq!(terms.len(), 64);
        assert_eq!((terms[0], terms[28], terms[29], terms[40]), (7, 0, 1, 9));
    }
}
