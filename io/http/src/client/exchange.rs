//! One connection, and exchanges over it, one after the other.

use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::ClientError;
use crate::{CredentialsError, Endpoint, check_listener};

/// A connection without an exchange in flight.
pub(super) struct Connected {
    sender: SendRequest<Full<Bytes>>,
    /// The task that moves the bytes; it must be polled for a reply to come.
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    over: bool,
}

/// The most bytes of a reply that are accepted: a hundred thousand subjects fit.
const ANSWER_BYTES_MAX: usize = 128 << 20;

impl Connected {
    pub(super) async fn to(
        at: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Connected, ClientError> {
        let failed = |source| ClientError::Connect { at: at.clone(), source };
        match at {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                check_listener(&stream, path)?;
                Connected::over(at, TokioIo::new(stream)).await
            }
            Endpoint::Http { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Connected::over(at, TokioIo::new(stream)).await
            }
            Endpoint::Https { host, port } => {
                let none = || CredentialsError::NoAuthority { at: at.name() };
                let connector = TlsConnector::from(tls.ok_or_else(none)?.clone());
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|error| failed(io::Error::other(error)))?;
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                let stream = connector.connect(name, stream).await.map_err(failed)?;
                Connected::over(at, TokioIo::new(stream)).await
            }
        }
    }

    async fn over<S>(at: &Endpoint, stream: S) -> Result<Connected, ClientError>
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::handshake(stream).await.map_err(|error| exchange_error(at, &error))?;
        // Its result shows in the reply, or in the missing reply.
        let driver = Box::pin(async move { drop(connection.await) });
        Ok(Connected { sender, driver, over: false })
    }

    /// Returns whether a further exchange may be tried.
    pub(super) fn is_open(&self) -> bool {
        !self.over
    }

    pub(super) async fn send(
        &mut self,
        at: &Endpoint,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let sender = &mut self.sender;
        let answer = async {
            sender.ready().await.map_err(|error| exchange_error(at, &error))?;
            let response =
                sender.send_request(request).await.map_err(|error| exchange_error(at, &error))?;
            let status = response.status();
            Ok((status, read_body(at, response.into_body()).await?))
        };
        Connected::drive(&mut self.driver, &mut self.over, answer).await
    }

    /// Makes an exchange whose reply goes into a file piece by piece; a refusal is returned.
    pub(super) async fn send_into(
        &mut self,
        at: &Endpoint,
        request: Request<Full<Bytes>>,
        file: &mut File,
    ) -> Result<Result<(), (StatusCode, Bytes)>, ClientError> {
        let sender = &mut self.sender;
        let answer = async {
            sender.ready().await.map_err(|error| exchange_error(at, &error))?;
            let response =
                sender.send_request(request).await.map_err(|error| exchange_error(at, &error))?;
            let (status, mut body) = (response.status(), response.into_body());
            if !status.is_success() {
                return Ok(Err((status, read_body(at, body).await?)));
            }
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| exchange_error(at, &error))?;
                if let Ok(data) = frame.into_data() {
                    file.write_all(&data).map_err(|error| exchange_error(at, &error))?;
                }
            }
            Ok(Ok(()))
        };
        Connected::drive(&mut self.driver, &mut self.over, answer).await
    }

    /// Runs an exchange and the task that moves its bytes.
    async fn drive<T>(
        driver: &mut Pin<Box<dyn Future<Output = ()> + Send>>,
        over: &mut bool,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        // If the connection ends first, the reply still waits in the channel between them, or
        // reports what broke.
        tokio::pin!(answer);
        tokio::select! {
            outcome = &mut answer => outcome,
            () = driver => {
                *over = true;
                answer.await
            }
        }
    }
}

async fn read_body(at: &Endpoint, body: Incoming) -> Result<Bytes, ClientError> {
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|error| exchange_error(at, &*error))?.to_bytes())
}

pub(super) fn exchange_error(at: &Endpoint, error: &dyn std::error::Error) -> ClientError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    ClientError::Exchange { at: at.clone(), reason }
}
