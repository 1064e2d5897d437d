//! One HTTP/1.1 exchange: a request, and a reply of bounded size.

use api::Endpoint;

use crate::deadline::Deadline;
use crate::endpoint::ResolvedEndpoint;
use crate::error::{CallError, CallErrorCode};
use crate::stream::ControllerStream;

/// A request, the same for each controller.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: &'static str,
    /// With its query.
    pub(crate) path: String,
    /// JSON, or empty.
    pub(crate) body: String,
}

impl HttpRequest {
    pub(crate) fn get(path: String) -> HttpRequest {
        HttpRequest { method: "GET", path, body: String::new() }
    }

    fn encode(&self, at: &Endpoint, token: Option<&str>) -> Vec<u8> {
        let host = match at {
            Endpoint::Unix(_) => "localhost".to_owned(),
            Endpoint::Http { .. } | Endpoint::Https { .. } => at.name(),
        };
        let token =
            token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        let kind = if self.body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let (method, path, length) = (self.method, &self.path, self.body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{token}{kind}\
             content-length: {length}\r\n\r\n"
        );
        [head.as_bytes(), self.body.as_bytes()].concat()
    }
}

/// How far an exchange came before it failed.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// Nothing was sent.
    NotSent(CallError),
    /// It was sent at least in part, so it may have been executed.
    Sent(CallError),
}

/// Makes one exchange; returns the status and the body. It connects by `connected_by`, and has the
/// reply by `replied_by`.
pub(crate) fn exchange<'a>(
    at: &ResolvedEndpoint,
    tls: Option<&std::sync::Arc<rustls::ClientConfig>>,
    token: Option<&str>,
    request: &HttpRequest,
    connected_by: Deadline<'a>,
    replied_by: Deadline<'a>,
) -> Result<(u16, Vec<u8>), ExchangeError> {
    let stream = ControllerStream::connect(at, tls, connected_by);
    let mut stream = stream.map_err(ExchangeError::NotSent)?;
    stream.set_deadline(replied_by);
    // A server that refuses may close before it has read all: its reply is read in any case.
    let sent = stream.send_all(&request.encode(&at.endpoint, token));
    if let Err(error) = &sent
        && error.code != CallErrorCode::InDoubt
    {
        return sent.map(|()| (0, Vec::new())).map_err(ExchangeError::Sent);
    }
    read_reply(&mut stream).map_err(|mut error| {
        error.text = format!("{}: {}", at.endpoint.name(), error.text);
        ExchangeError::Sent(error)
    })
}

/// How the end of a body shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BodyEnd {
    Length(usize),
    Chunked,
    Close,
}

fn read_reply(stream: &mut ControllerStream<'_>) -> Result<(u16, Vec<u8>), CallError> {
    let mut bytes = Vec::new();
    // 100 Continue and its like come before the reply.
    for _ in 0..=INTERIM_MAX {
        let (status, end, body_at) = loop {
            if let Some(head) = parse_head(&bytes)? {
                break head;
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(protocol(format!("a head of more than {HEAD_BYTES_MAX} bytes")));
            }
            if receive(stream, &mut bytes)? == 0 {
                return Err(CallError::new(CallErrorCode::InDoubt, "closed without a reply"));
            }
        };
        bytes.drain(..body_at);
        if status >= 200 {
            return read_body(stream, bytes, end).map(|body| (status, body));
        }
    }
    Err(protocol(format!("more than {INTERIM_MAX} interim replies")))
}

fn parse_head(bytes: &[u8]) -> Result<Option<(u16, BodyEnd, usize)>, CallError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut reply = httparse::Response::new(&mut headers);
    let status = reply.parse(bytes).map_err(|error| protocol(format!("not HTTP: {error}")))?;
    let httparse::Status::Complete(body_at) = status else { return Ok(None) };
    let code = reply.code.ok_or_else(|| protocol("no status".into()))?;
    let mut end = BodyEnd::Close;
    for header in reply.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        let found = if header.name.eq_ignore_ascii_case("transfer-encoding") {
            match value.eq_ignore_ascii_case("chunked") {
                true => BodyEnd::Chunked,
                false => return Err(protocol(format!("transfer-encoding {value:?}"))),
            }
        } else if header.name.eq_ignore_ascii_case("content-length") {
            BodyEnd::Length(length_of(value)?)
        } else {
            continue;
        };
        if end != BodyEnd::Close && end != found {
            return Err(protocol("headers that contradict each other about its length".into()));
        }
        end = found;
    }
    if code < 200 || code == 204 {
        end = BodyEnd::Length(0);
    }
    Ok(Some((code, end, body_at)))
}

fn length_of(value: &str) -> Result<usize, CallError> {
    // `parse` would take a sign, too.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let length = value.parse().ok().filter(|_| digits);
    let length = length.ok_or_else(|| protocol(format!("length {value:?}")))?;
    match length > BODY_BYTES_MAX {
        true => Err(too_long()),
        false => Ok(length),
    }
}

/// Reads the rest of a body of which `bytes` are there.
fn read_body(
    stream: &mut ControllerStream<'_>,
    mut bytes: Vec<u8>,
    end: BodyEnd,
) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    loop {
        let is_complete = match end {
            BodyEnd::Length(length) => bytes.len() >= length,
            BodyEnd::Chunked => take_chunks(&mut bytes, &mut body)?,
            BodyEnd::Close => false,
        };
        if is_complete {
            if let BodyEnd::Length(length) = end {
                bytes.truncate(length);
                return Ok(bytes);
            }
            return Ok(body);
        }
        if bytes.len() + body.len() > BODY_BYTES_MAX {
            return Err(too_long());
        }
        if receive(stream, &mut bytes)? == 0 {
            return match end {
                BodyEnd::Close => Ok(bytes),
                _ => Err(CallError::new(CallErrorCode::InDoubt, "closed within its reply")),
            };
        }
    }
}

/// Moves complete chunks into the body; true at the last one.
fn take_chunks(bytes: &mut Vec<u8>, body: &mut Vec<u8>) -> Result<bool, CallError> {
    loop {
        let size = httparse::parse_chunk_size(bytes);
        let httparse::Status::Complete((at, size)) =
            size.map_err(|_| protocol("an invalid size of a chunk".into()))?
        else {
            return Ok(false);
        };
        if size > BODY_BYTES_MAX as u64 || body.len() + size as usize > BODY_BYTES_MAX {
            return Err(too_long());
        }
        let end = at + size as usize;
        if size == 0 {
            return Ok(true);
        }
        if bytes.len() < end + 2 {
            return Ok(false);
        }
        if bytes[end..end + 2] != *b"\r\n" {
            return Err(protocol("a chunk that is longer than its size".into()));
        }
        body.extend_from_slice(&bytes[at..end]);
        bytes.drain(..end + 2);
    }
}

fn receive(stream: &mut ControllerStream<'_>, bytes: &mut Vec<u8>) -> Result<usize, CallError> {
    let mut buffer = [0; 16 << 10];
    let count = stream.receive(&mut buffer)?;
    bytes.extend_from_slice(&buffer[..count]);
    Ok(count)
}

fn protocol(what: String) -> CallError {
    CallError::new(CallErrorCode::Protocol, format!("an unexpected reply: {what}"))
}

fn too_long() -> CallError {
    protocol(format!("a body of more than {BODY_BYTES_MAX} bytes"))
}

/// The longest head of a reply.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The most headers of a reply.
const HEADERS_MAX: usize = 64;
/// The most replies such as 100 Continue before the reply.
const INTERIM_MAX: usize = 8;
/// The longest body: a reservation has some kilobytes, a table of usage some hundred.
const BODY_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_however_they_arrive() {
        let text = b"4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\n\r\n";
        let (mut bytes, mut body) = (Vec::new(), Vec::new());
        let mut done = false;
        for byte in text {
            bytes.push(*byte);
            done = done || take_chunks(&mut bytes, &mut body).unwrap();
        }
        assert!(done);
        assert_eq!(body, b"abcdefg");
        for wrong in ["fffffffff\r\n", "3\r\nabcd\r\n", "x\r\n"] {
            let error = take_chunks(&mut wrong.into(), &mut Vec::new()).unwrap_err();
            assert_eq!(error.code, CallErrorCode::Protocol, "{wrong}");
        }
    }

    #[test]
    fn a_head_says_how_its_body_ends() {
        let end = |text: &str| parse_head(text.as_bytes()).map(|head| head.map(|(_, end, _)| end));
        let head = |more: &str| format!("HTTP/1.1 200 OK\r\n{more}\r\n");
        assert_eq!(end(&head("Content-Length: 3\r\n")).unwrap(), Some(BodyEnd::Length(3)));
        assert_eq!(end(&head("transfer-encoding: chunked\r\n")).unwrap(), Some(BodyEnd::Chunked));
        assert_eq!(end(&head("")).unwrap(), Some(BodyEnd::Close));
        let twice = "content-length: 3\r\ncontent-length: 3\r\n";
        assert_eq!(end(&head(twice)).unwrap(), Some(BodyEnd::Length(3)));
        let empty = "HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\n";
        assert_eq!(end(empty).unwrap(), Some(BodyEnd::Length(0)));
        assert_eq!(end("HTTP/1.1 200").unwrap(), None);
        for wrong in [
            "content-length: x\r\n",
            "content-length: +5\r\n",
            "content-length:\r\n",
            "content-length: 99999999\r\n",
            "content-length: 3\r\ncontent-length: 4\r\n",
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip\r\n",
            "no colon\r\n",
        ] {
            assert!(end(&head(wrong)).is_err(), "{wrong}");
        }
    }
}
