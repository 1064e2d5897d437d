//! One table of messages makes the enum, its decoder and its encoder, so that the
//! two directions cannot drift apart.
//!
//! ```text
//!   116 Read { fid: Fid = fid, "the open file"; offset: u64 = u64, "…"; … }
//!   │   │      │    │     │    └ doc of the field
//!   │   │      │    │     └ method of `FrameReader` and `FrameWriter` that codes it
//!   │   │      └────┴ field and type; the order is the order on the wire
//!   └───┴ type on the wire and variant
//! ```
//!
//! A body that is one value of its own has it in parentheses instead.

macro_rules! messages {
    (
        $(#[$meta:meta])*
        $message:ident;
        $(
            $(#[$doc:meta])*
            $number:literal $variant:ident
            $({ $( $field:ident: $type:ty = $codec:ident, $text:literal; )* })?
            $(( $inner:ident: $inner_type:ty = $inner_codec:ident ))?
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $message<'a> {
            $(
                $(#[$doc])*
                $variant $({ $( #[doc = $text] $field: $type, )* })? $(( $inner_type ))?,
            )*
        }

        impl<'a> $message<'a> {
            /// Decodes one whole frame, its size field included. Nothing is allocated.
            ///
            /// # Errors
            /// If the frame is anything but exactly one such message.
            pub fn decode(frame: &'a [u8]) -> Result<(Tag, $message<'a>), FrameError> {
                let (kind, mut get) = FrameReader::new(frame)?;
                let message = $message::take(kind, &mut get)?;
                get.finish()?;
                Ok((get.tag_of_message(), message))
            }

            /// Reads the body of a message of type `kind`.
            pub(crate) fn take(
                kind: u8,
                get: &mut FrameReader<'a>,
            ) -> Result<$message<'a>, FrameError> {
                Ok(match kind {
                    $(
                        $number => $message::$variant
                            $({ $( $field: get.$codec(stringify!($field))?, )* })?
                            $(( get.$inner_codec(stringify!($inner))? ))?,
                    )*
                    _ => return Err(FrameError::UnknownType { tag: get.tag_of_message(), kind }),
                })
            }

            /// Appends the message to `out`, its size field included. Names are not
            /// checked.
            ///
            /// # Panics
            /// If a string is longer than 65,535 bytes or the message than 4 GiB.
            pub fn encode(&self, tag: Tag, out: &mut Vec<u8>) {
                let mut put = FrameWriter::new(self.kind(), tag, out);
                self.put(&mut put);
                put.finish();
            }

            /// Appends the body alone.
            pub(crate) fn put(&self, put: &mut FrameWriter<'_>) {
                match *self {
                    $(
                        $message::$variant $({ $( $field, )* })? $(( $inner ))? => {
                            $( $( put.$codec($field); )* )?
                            $( put.$inner_codec($inner); )?
                        }
                    )*
                }
            }

            /// The message's type on the wire.
            pub const fn kind(&self) -> u8 {
                match self { $( $message::$variant { .. } => $number, )* }
            }

            /// The message's name in this enum, for logs.
            pub const fn name(&self) -> &'static str {
                match self { $( $message::$variant { .. } => stringify!($variant), )* }
            }
        }
    };
}
pub(crate) use messages;
