//! A TCP round trip of 64 bytes over the loopback, on one thread: what a call over the network costs
//! at the very least, to hold the price of a policy against.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::clock;

const BYTES: usize = 64;

/// Mean time of one of `trips` round trips.
///
/// # Errors
/// When the loopback can't be used.
pub async fn round_trip(trips: u32) -> io::Result<Duration> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let (client, server) = tokio::join!(ask(address, trips), echo(&listener));
    server?;
    client
}

async fn ask(address: std::net::SocketAddr, trips: u32) -> io::Result<Duration> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut bytes = [7; BYTES];
    let start = clock::now();
    for _ in 0..trips {
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
    }
    Ok(start.elapsed() / trips.max(1))
}

/// Sends back what comes, until the other side hangs up.
async fn echo(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; BYTES];
    loop {
        match stream.read_exact(&mut bytes).await {
            Ok(_) => stream.write_all(&bytes).await?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
