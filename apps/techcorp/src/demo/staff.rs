//! Starts, stops and kills services, in this process or in one of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use mamparo::call::{Dependency, clock};
use mamparo::http::HttpClient;
use mamparo::service::{CancellationToken, Role, ServiceError, ShutdownReport, Tasks, Telemetry};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use super::DemoError;
use super::site::Site;
use crate::shop;
use crate::weather::{Sky, WEATHER, Weather};

/// How long a service may take to get ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// Where a service runs.
#[derive(Debug)]
enum Place {
    /// In this process.
    Here { stop: CancellationToken, ended: oneshot::Receiver<Result<ShutdownReport, ServiceError>> },
    /// In a process of its own.
    Apart(Child),
}

/// Everybody who works in the shop.
#[derive(Debug)]
pub struct Staff {
    site: Site,
    telemetry: Telemetry,
    /// The program to start for services that run apart.
    program: PathBuf,
    apart: Vec<&'static str>,
    weather: BTreeMap<&'static str, Weather>,
    tasks: Tasks,
    running: BTreeMap<&'static str, Place>,
}

impl Staff {
    /// Nobody works yet. Services in `apart` will run in processes of their own.
    #[must_use]
    pub fn new(
        site: Site,
        telemetry: Telemetry,
        program: PathBuf,
        apart: Vec<&'static str>,
    ) -> Self {
        let weather = shop::SERVICES.iter().map(|name| (*name, Weather::default())).collect();
        let (tasks, running) = (Tasks::new("demo"), BTreeMap::new());
        Self { site, telemetry, program, apart, weather, tasks, running }
    }

    /// Where the shop stands.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The metrics of this process.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Services that run in processes of their own.
    #[must_use]
    pub fn apart(&self) -> &[&'static str] {
        &self.apart
    }

    /// Changes the weather over a service, wherever it runs.
    ///
    /// # Errors
    /// When a service in a process of its own can't be told.
    pub async fn sky(&self, service: &'static str, sky: Sky) -> Result<(), DemoError> {
        if !self.apart.contains(&service) {
            self.weather(service).set(sky);
            return Ok(());
        }
        let door = self.probe(service)?;
        match door.put(WEATHER).json(&sky).send().await {
            Ok(_) => Ok(()),
            Err(error) => {
                let why = crate::services::answers::chain(&error);
                Err(DemoError::Policy { service: service.to_owned(), why })
            }
        }
    }

    fn weather(&self, service: &str) -> Weather {
        self.weather.get(service).cloned().unwrap_or_default()
    }

    fn probe(&self, service: &str) -> Result<HttpClient, DemoError> {
        let dependency = Dependency::builder(service).attempt_timeout(Duration::from_secs(1));
        Ok(HttpClient::new(&self.site.url(service), dependency.build()?)?)
    }

    /// Starts a service and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start, or is not ready in time.
    pub async fn start(&mut self, service: &'static str) -> Result<(), DemoError> {
        let place = if self.apart.contains(&service) {
            self.start_apart(service)?
        } else {
            self.start_here(service).await?
        };
        self.running.insert(service, place);
        self.until_ready(service).await
    }

    async fn start_here(&self, service: &'static str) -> Result<Place, DemoError> {
        let policy = mamparo::topology::load_one(self.site.policy(service))?;
        let weather = self.weather(service);
        // Boxed: the run that awaits this would grow by all services' wiring.
        let built = Box::pin(shop::build(policy, self.telemetry.clone(), &weather)).await;
        let built = built.map_err(|source| DemoError::Start { service, source })?;
        let (stop, (tell, ended)) = (CancellationToken::new(), oneshot::channel());
        let stopped = stop.clone();
        self.tasks.spawn(Role::Worker, service, |_| async move {
            // Nobody listens any more when the demo itself has failed.
            let _ = tell.send(built.run(stopped.cancelled()).await);
        });
        Ok(Place::Here { stop, ended })
    }

    fn start_apart(&self, service: &'static str) -> Result<Place, DemoError> {
        // Its logs belong beside those of this process, whose variables it shares.
        let quiet = LevelFilter::current() == LevelFilter::OFF;
        let child = Command::new(&self.program)
            .arg(service)
            .arg("--config")
            .arg(self.site.policy(service))
            .arg("--weather")
            // The file alone says where it stands, as for those in this process.
            .env_remove("MAMPARO_LISTEN")
            .env_remove("MAMPARO_STORE")
            .env_remove("MAMPARO_BROKER")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(if quiet { Stdio::null() } else { Stdio::inherit() })
            .kill_on_drop(true)
            .spawn();
        let path = self.program.display().to_string();
        child.map(Place::Apart).map_err(|source| DemoError::File { path, source })
    }

    async fn until_ready(&self, service: &'static str) -> Result<(), DemoError> {
        let probe = self.probe(service)?;
        let give_up = clock::now().plus(READY_WITHIN);
        while clock::now() < give_up {
            if probe.get("/health/ready").send().await.is_ok() {
                return Ok(());
            }
            clock::sleep_until(clock::now().plus(LOOK)).await;
        }
        Err(DemoError::NotReady { service, within: READY_WITHIN })
    }

    /// Stops a service in order. What it did on the way out; `None` for one that ran apart.
    ///
    /// # Errors
    /// When it lost a task, or its process did not end well.
    pub async fn stop(&mut self, service: &str) -> Result<Option<ShutdownReport>, DemoError> {
        match self.running.remove(service) {
            None => Ok(None),
            Some(Place::Here { stop, ended }) => {
                stop.cancel();
                match ended.await {
                    Ok(report) => Ok(Some(report?)),
                    Err(_) => Err(DemoError::Lost { service: service.to_owned() }),
                }
            }
            Some(Place::Apart(mut child)) => {
                terminate(&child);
                let status = child.wait().await;
                let path = service.to_owned();
                let status = status.map_err(|source| DemoError::File { path, source })?;
                if status.success() {
                    Ok(None)
                } else {
                    Err(DemoError::Lost { service: service.to_owned() })
                }
            }
        }
    }

    /// Kills a service that runs apart, as a power cut would.
    ///
    /// # Errors
    /// When there is no process to kill.
    pub async fn kill(&mut self, service: &str) -> Result<(), DemoError> {
        match self.running.remove(service) {
            Some(Place::Apart(mut child)) => child
                .kill()
                .await
                .map_err(|source| DemoError::File { path: service.to_owned(), source }),
            other => {
                drop(other);
                Err(DemoError::Lost { service: service.to_owned() })
            }
        }
    }

    /// Stops everybody, those first who are called by nobody.
    ///
    /// # Errors
    /// The first service that did not stop well; the others are stopped all the same.
    pub async fn stop_all(&mut self) -> Result<Vec<ShutdownReport>, DemoError> {
        let (mut reports, mut failed) = (Vec::new(), None);
        for service in shop::SERVICES.iter().rev() {
            match self.stop(service).await {
                Ok(report) => reports.extend(report),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(reports), Err)
    }
}

/// SIGTERM, through the system's own `kill`: the workspace has no unsafe code.
fn terminate(child: &Child) {
    if let Some(id) = child.id() {
        let sent = std::process::Command::new("kill").arg(id.to_string()).status();
        if let Err(error) = sent {
            tracing::error!(%error, "failed to send SIGTERM");
        }
    }
}
