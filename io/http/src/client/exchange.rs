//! One connection, and exchanges over it, one after the other.

use std::error::Error;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;

use api::credentials::no_ca;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::ClientError;
use crate::{Endpoint, check_listener};

/// A connection without an exchange in flight.
pub(super) struct Connected {
    sender: SendRequest<Full<Bytes>>,
    /// Moves the bytes; it must be polled for a reply to come.
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
                Connected::over(at, stream).await
            }
            Endpoint::Http { host, port } => {
                Connected::over(at, connect_tcp(at, host, *port).await.map_err(failed)?).await
            }
            Endpoint::Https { host, port } => {
                let connector = TlsConnector::from(tls.ok_or_else(|| no_ca(at))?.clone());
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|error| failed(io::Error::other(error)))?;
                let stream = connect_tcp(at, host, *port).await.map_err(failed)?;
                let stream = connector.connect(name, stream).await.map_err(failed)?;
                Connected::over(at, stream).await
            }
        }
    }

    async fn over<S>(at: &Endpoint, stream: S) -> Result<Connected, ClientError>
    where
        TokioIo<S>: Read + Write + Unpin + Send + 'static,
    {
        let connection = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connection.map_err(|error| exchange_error(at, &error))?;
        // Its result shows in the reply, or in the missing reply.
        let driver = Box::pin(async move { drop(connection.await) });
        Ok(Connected { sender, driver, over: false })
    }

    /// Returns whether a further exchange may be tried.
    pub(super) fn is_open(&self) -> bool {
        !self.over
    }

    /// Makes an exchange. The body of a successful reply goes into `file`, if there is one, piece
    /// by piece; any other body is returned.
    pub(super) async fn send(
        &mut self,
        at: &Endpoint,
        request: Request<Full<Bytes>>,
        file: Option<&mut File>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let Connected { sender, driver, over } = self;
        let answer = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let (status, mut body) = (response.status(), response.into_body());
            if let Some(file) = file.filter(|_| status.is_success()) {
                while let Some(frame) = body.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        file.write_all(&data)?;
                    }
                }
            }
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
            Ok((status, body.to_bytes()))
        };
        let outcome: Result<_, Box<dyn Error + Send + Sync>> = async {
            tokio::pin!(answer);
            tokio::select! {
                outcome = &mut answer => outcome,
                // The reply still waits in the channel between them, or reports what broke.
                () = driver => {
                    *over = true;
                    answer.await
                }
            }
        }
        .await;
        outcome.map_err(|error| exchange_error(at, &*error))
    }
}

async fn connect_tcp(at: &Endpoint, host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    at.check_localhost(&addresses).map_err(io::Error::other)?;
    let stream = TcpStream::connect(&*addresses).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(super) fn exchange_error(at: &Endpoint, error: &dyn Error) -> ClientError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    ClientError::Exchange { at: at.clone(), reason }
}
