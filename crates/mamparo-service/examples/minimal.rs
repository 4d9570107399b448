//! A whole service in one file: policy file, telemetry, a server, a worker, readiness, shutdown.
//!
//! `cargo run -p mamparo-service --example minimal -- minimal.toml`, with a file such as
//!
//! ```toml
//! [service]
//! name = "minimal"
//! owner = "team-minimal"
//!
//! [settings]
//! worker = "steady"        # or "panics", or "ends"
//! ```
//!
//! Each connection gets one line, "ready" or "not ready". The first line on stdout is the address.

#![expect(clippy::panic, reason = "it shows what a panic in a task leads to")]

use std::io::Write as _;
use std::process::ExitCode;

use mamparo_service::{
    CancellationToken, Readiness, Role, Service, Stage, Step, config, exit_code, run_until_signal,
    telemetry,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

fn main() -> ExitCode {
    let path = std::env::args().nth(1).unwrap_or_else(|| "minimal.toml".to_owned());
    let (policy, environment) = match config::load_or_report(path) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let mut settings = policy.settings.reader();
    let worker = settings.or("worker", "steady".to_owned());
    let slow_stop = settings.or("slow_stop", false);
    if let Err(problems) = settings.finish() {
        return config::report(&problems);
    }
    let Ok(runtime) = tokio::runtime::Runtime::new() else { return ExitCode::FAILURE };
    exit_code(runtime.block_on(async {
        let telemetry = telemetry::install(&environment)?;
        let service = Service::new(policy.service.name.value.clone());
        let (tasks, readiness) = (service.tasks(), service.readiness().clone());
        tasks.spawn_essential(Role::Worker, "telemetry", |stop| telemetry.keep(stop));
        let listen = *policy.service.listen;
        tasks.spawn_essential(Role::Server, "server", move |stop| async move {
            serve(TcpListener::bind(listen).await?, readiness, stop).await
        });
        tasks.spawn_essential(Role::Worker, "worker", |stop| async move {
            match worker.as_str() {
                "panics" => panic!("the worker lost its mind"),
                "ends" => {}
                _ => stop.cancelled().await,
            }
        });
        if slow_stop {
            service.on_stop(Step::ClosePools, "a pool that hangs", std::future::pending);
        }
        run_until_signal(vec![service]).await
    }))
}

async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    let check = readiness.check("listener");
    check.ready();
    // Whoever reads the address may connect, or send a signal, at once: the service runs by then.
    tokio::select! {
        () = readiness.until(Stage::Ready) => {}
        () = stop.cancelled() => return Ok(()),
    }
    writeln!(std::io::stdout(), "{address}")?;
    loop {
        let (mut connection, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            () = stop.cancelled() => return Ok(()),
        };
        let word = if readiness.report().ready { "ready\n" } else { "not ready\n" };
        connection.write_all(word.as_bytes()).await?;
    }
}
