//! Attacks on what answers HTTP, by a client without a token, with that of a proxy, or with that
//! of who may only read.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{Attack, Over, keep};
use crate::Dice;

/// Whom the attacks are against.
#[derive(Clone, Debug)]
pub struct HttpVictim {
    /// The address that it listens at.
    pub address: SocketAddr,
    /// A token with which it takes reports of proxies.
    pub proxy: String,
    /// A token with which it tells what it knows.
    pub reader: String,
}

/// The attacks on a server of HTTP.
pub const ALL: &[Attack<HttpVictim>] = &[
    Attack { name: "connections", round: connections },
    Attack { name: "half heads", round: halves },
    Attack { name: "long heads", round: heads },
    Attack { name: "bodies that do not come", round: absent },
    Attack { name: "bodies that do not end", round: endless },
    Attack { name: "bodies that nobody takes", round: untaken },
    Attack { name: "answers that are not read", round: unread },
    Attack { name: "streams", round: streams },
    Attack { name: "nested values", round: nested },
    Attack { name: "reports", round: reports },
    Attack { name: "tokens", round: tokens },
    Attack { name: "questions", round: questions },
    Attack { name: "noise", round: noise },
];

fn connect(victim: &HttpVictim) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(victim.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A head to which an empty line is missing.
fn head(victim: &HttpVictim, call: &str, token: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    format!("{call} HTTP/1.1\r\nhost: {}\r\n{}", victim.address, token.unwrap_or_default())
}

/// Sends a call and forgets what is answered.
fn call(victim: &HttpVictim, call: &str, token: Option<&str>, body: &[u8]) -> io::Result<()> {
    let mut stream = connect(victim)?;
    let length = body.len();
    let head = head(victim, call, token);
    write!(stream, "{head}connection: close\r\ncontent-type: application/json\r\n")?;
    write!(stream, "content-length: {length}\r\n\r\n")?;
    // Who has heard enough closes before all of it is written.
    let _ = stream.write_all(body);
    let _ = io::copy(&mut stream, &mut io::sink());
    Ok(())
}

/// Connects as often as it can, and says nothing.
fn connections(victim: &HttpVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let all: Vec<_> = (0..2_000).map_while(|_| (!over()).then(|| connect(victim).ok())?).collect();
    keep(over);
    drop(all);
    Ok(())
}

/// Sends a head byte by byte.
fn halves(victim: &HttpVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all: Vec<_> = (0..50).map(|_| connect(victim)).collect::<Result<_, _>>()?;
    let head = head(victim, "GET /v1/status", None);
    for byte in head.bytes() {
        if over() {
            break;
        }
        all[dice.below(50) as usize].write_all(&[byte])?;
    }
    keep(over);
    Ok(())
}

/// Sends a head of many lines, or of a long one.
fn heads(victim: &HttpVictim, dice: &mut Dice, _: Over<'_>) -> io::Result<()> {
    let mut stream = connect(victim)?;
    stream.write_all(head(victim, "GET /v1/status", None).as_bytes())?;
    let line = match dice.below(2) {
        0 => "x: y\r\n".repeat(100_000),
        _ => format!("x: {}", "y".repeat(1 << 20)),
    };
    stream.write_all(line.as_bytes())?;
    drain(&mut stream)
}

/// Announces long bodies and sends a little of each.
fn absent(victim: &HttpVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    let head = head(victim, "POST /v1/proxies/hostile/report", Some(&victim.proxy));
    for _ in 0..30 {
        let mut stream = connect(victim)?;
        write!(stream, "{head}content-type: application/json\r\ncontent-length: 33554432\r\n\r\n")?;
        let _ = stream.write_all(&[b' '; 64 << 10]);
        all.push(stream);
    }
    keep(over);
    Ok(())
}

/// Sends a body in pieces, for as long as they are taken.
fn endless(victim: &HttpVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut stream = connect(victim)?;
    let head = head(victim, "POST /v1/proxies/hostile/report", Some(&victim.proxy));
    write!(stream, "{head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // It is thrown out when it has sent too much.
    while !over() && stream.write_all(piece.as_bytes()).is_ok() {}
    Ok(())
}

/// Sends long bodies where none is wanted, and to whom it may not.
fn untaken(victim: &HttpVictim, dice: &mut Dice, _: Over<'_>) -> io::Result<()> {
    let calls = ["GET /v1/status", "PUT /v1/rules", "POST /v1/tokens", "POST /nothing"];
    let token = [None, Some(victim.reader.as_str()), Some(victim.proxy.as_str())];
    call(victim, dice.one_of::<&str>(&calls), *dice.one_of(&token), &vec![b' '; 8 << 20])
}

/// Asks for much, one question behind the other, and reads nothing.
fn unread(victim: &HttpVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    let questions = format!("{}\r\n", head(victim, "GET /openapi.json", Some(&victim.reader)));
    for _ in 0..20 {
        let mut stream = connect(victim)?;
        stream.write_all(questions.repeat(100).as_bytes())?;
        all.push(stream);
    }
    keep(over);
    Ok(())
}

/// Opens as many streams of events as it may, and reads none.
fn streams(victim: &HttpVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    let head = head(victim, "GET /v1/events?since=0", Some(&victim.reader));
    for _ in 0..200 {
        if over() {
            break;
        }
        let mut stream = connect(victim)?;
        write!(stream, "{head}accept: text/event-stream\r\n\r\n")?;
        all.push(stream);
    }
    keep(over);
    Ok(())
}

/// Sends values in values.
fn nested(victim: &HttpVictim, dice: &mut Dice, _: Over<'_>) -> io::Result<()> {
    let open = *dice.one_of(&["[", "{\"a\":", "[{\"targets\":"]);
    let path = format!("POST /v1/proxies/hostile-{}/report", dice.below(3));
    call(victim, &path, Some(&victim.proxy), open.repeat(100_000).as_bytes())
}

/// Reports what no proxy would.
fn reports(victim: &HttpVictim, dice: &mut Dice, _: Over<'_>) -> io::Result<()> {
    let long = "n".repeat(5_000);
    let names = ["..%2F..%2Fetc", "%00", "%E2%80%AE", "-", "", "hostile", &long];
    let far = ["-1", "1e400", "18446744073709551616", "null", "\"\"", "{}", "0.5"];
    let path = format!("POST /v1/proxies/{}/report", dice.one_of(&names));
    let (epoch, count) = (dice.one_of(&far), dice.one_of(&far));
    let body = format!(
        "{{\"epoch\":{epoch},\"rules\":{{\"version\":\"\\u202e\"}},\"targets\":{{\"\":{{\
         \"scopes\":{count}}}}},\"usage\":{{\"lines\":[{{\"count\":{count}}}]}}}}"
    );
    call(victim, &path, Some(&victim.proxy), body.as_bytes())?;
    let bytes = dice.bytes(2_000);
    let mut stream = connect(victim)?;
    let head = head(victim, &path, Some(&victim.proxy));
    let kind = "application/vnd.sluice.report-4+postcard";
    write!(stream, "{head}content-type: {kind}\r\ncontent-length: {}\r\n\r\n", bytes.len())?;
    stream.write_all(&bytes)?;
    drain(&mut stream)
}

/// Comes with tokens by chance, and with none.
fn tokens(victim: &HttpVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..50 {
        if over() {
            break;
        }
        let token = format!("slc_{:032x}", dice.below(u64::MAX));
        let token = (dice.below(3) > 0).then_some(token.as_str());
        let calls = ["GET /v1/tokens", "DELETE /v1/tokens/root", "GET /v1/audit", "PUT /v1/rules"];
        call(victim, dice.one_of::<&str>(&calls), token, b"")?;
    }
    Ok(())
}

/// Asks for spans, pages and names that there are not.
fn questions(victim: &HttpVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let paths =
        ["usage", "events", "why", "report", "why/top", "live", "proxies", "ledger/changes"];
    let keys = ["by", "from", "to", "limit", "since", "wait", "job", "subject", "user"];
    let values =
        ["-1", "now", "-99999999h", "9999999999999999999", "%00", "%E2%80%AE", "0s", "job"];
    for _ in 0..50 {
        if over() {
            break;
        }
        let (path, key, value) = (*dice.one_of(&paths), *dice.one_of(&keys), *dice.one_of(&values));
        let question = format!("GET /v1/{path}?{key}={value}&{key}={value}");
        call(victim, &question, Some(&victim.reader), b"")?;
    }
    Ok(())
}

/// Sends bytes by chance.
fn noise(victim: &HttpVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..50 {
        if over() {
            break;
        }
        let len = dice.below(2_000) as usize;
        let _ = connect(victim)?.write_all(&dice.bytes(len));
    }
    Ok(())
}

/// Reads a part of what is answered.
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let _ = stream.read(&mut [0; 4096]);
    Ok(())
}

/// Time to wait for an answer before the connection is closed.
const PATIENCE: Duration = Duration::from_secs(10);
