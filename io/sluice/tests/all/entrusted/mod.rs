//! Commands, tokens and certificates for the tests of who may do what.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::{NewJob, NewToken, Role};
use http::{ApiClient, Credentials, Endpoint};

use testkit::p9::P9Address;

use crate::common::{PATIENCE, SLUICE};

/// Runs a command; what it printed, or what it said was wrong.
pub(crate) fn sluice(args: &[&str]) -> Result<String, String> {
    sluice_with(args, &[])
}

/// The same with variables.
pub(crate) fn sluice_with(args: &[&str], variables: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new(SLUICE);
    for name in ["CONTROLLER", "CA", "TOKEN_FILE", "TOKEN"] {
        command.env_remove(format!("SLUICE_{name}"));
    }
    let output = command.args(args).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The first token of a directory whose controller does not run.
pub(crate) fn first_token(data: &Path) -> String {
    let args = ["token", "create", "root", "--role", "admin", "--data", text(data)];
    let token = sluice(&args).unwrap();
    assert_eq!(token.lines().count(), 1, "{token}");
    token.trim().to_owned()
}

/// A file that only its owner may read.
pub(crate) fn secret(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

pub(crate) fn showing(token: &str) -> Credentials {
    Credentials { token: Some(token.into()), ..Credentials::default() }
}

pub(crate) fn client(url: &str, credentials: &Credentials) -> ApiClient {
    let client =
        ApiClient::at(&url.parse::<Endpoint>().unwrap()).unwrap().with(credentials).unwrap();
    client.with_time_limit(PATIENCE)
}

/// Has an administrator make a token; of role job, that of a job of the name, which is registered.
pub(crate) fn token(by: &ApiClient, name: &str, role: Role) -> String {
    if role == Role::Job {
        by.register_job(name, &NewJob { user: Some(1001), ..NewJob::default() }).unwrap();
        return by.job_token(name).unwrap().token;
    }
    let user = (role == Role::User).then_some(1001);
    let new = NewToken { name: name.into(), role, user, expires_s: None };
    by.make_token(&new).unwrap().token
}

/// One exchange over TCP without TLS: the answer's head and body.
pub(crate) fn ask(url: &str, call: &str, head: &str, body: &str) -> String {
    let at = url.strip_prefix("http://").unwrap();
    let head = format!("host: {at}\r\n{head}");
    ask_as(url, call, &head, body)
}

/// The same with a head that names the host itself, or none.
pub(crate) fn ask_as(url: &str, call: &str, head: &str, body: &str) -> String {
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    exchange(stream, call, head, body)
}

fn exchange(mut stream: TcpStream, call: &str, head: &str, body: &str) -> String {
    let length = body.len();
    let head =
        format!("{call} HTTP/1.1\r\nconnection: close\r\n{head}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // Who is told that it is too much closes before all of it is written.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The same from an address of this machine, with a token and no body.
pub(crate) fn ask_from(from: Ipv4Addr, to: SocketAddr, call: &str, token: &str) -> String {
    let stream = P9Address::From(from, to).open_tcp().unwrap();
    exchange(stream, call, &format!("host: {to}\r\nauthorization: Bearer {token}\r\n"), "")
}

/// The status of an answer.
pub(crate) fn status(answer: &str) -> u16 {
    let line = answer.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    line[..3].parse().unwrap()
}
