//! TLS: a certificate that nobody vouches for is refused; one that somebody does is taken.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod amqp;
mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use amqp::policy;
use common::order;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Broker as _, Confirm, RabbitMqBroker};
use mamparo_testkit::servers::RabbitMq;

/// Names the address for the part of a test that runs as a process of its own.
const ADDRESS: &str = "MAMPARO_TEST_TLS_ADDRESS";

fn openssl(arguments: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments).stderr(Stdio::null());
    command
}

/// A certificate for `localhost` and the authority that signed it, made for the occasion.
struct Certificate {
    authority: String,
    key: String,
    cert: String,
}

impl Certificate {
    fn make(folder: &Path) -> Self {
        let at = |name: &str| folder.join(name).display().to_string();
        let (authority, secret) = (at("ca.pem"), at("ca.key"));
        sign(&["-subj", "/CN=test authority", "-keyout", &secret, "-out", &authority]);
        let (key, cert) = (at("key.pem"), at("cert.pem"));
        sign(
            &[
                &["-subj", "/CN=localhost", "-keyout", &key, "-out", &cert][..],
                &["-CA", &authority, "-CAkey", &secret],
                &["-addext", "subjectAltName=DNS:localhost"],
                &["-addext", "basicConstraints=critical,CA:FALSE"],
            ]
            .concat(),
        );
        Self { authority, key, cert }
    }
}

fn sign(arguments: &[&str]) {
    let mut command = openssl(&["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    let made = command.args(arguments).status();
    let made = made.unwrap_or_else(|error| panic!("openssl, of the package openssl: {error}"));
    assert!(made.success(), "openssl made no certificate");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let Certificate { key, cert, .. } = Certificate::make(folder.path());
    let mut child = openssl(&["s_server", "-accept", "127.0.0.1:0", "-key", &key, "-cert", &cert])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let _server = Server(child);
    let port = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.strip_prefix("ACCEPT ")?.rsplit(':').next()?.to_owned()))
        .unwrap();
    let address = format!("amqps://guest:s3cret@localhost:{port}/%2f");
    let error = RabbitMqBroker::connect(&address).await.unwrap_err().to_string();
    assert!(error.contains("certificate") && !error.contains("s3cret"), "{error}");
}

/// Does nothing unless the other test has started it with an address.
#[tokio::test]
async fn publishes_over_tls_when_it_is_given_an_address() {
    #[expect(clippy::disallowed_methods, reason = "a test's own process is told by environment")]
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let broker = RabbitMqBroker::connect(&address).await.unwrap();
    let policy = policy();
    broker.declare(&policy).await.unwrap();
    let message = order("order.created", "o-1");
    assert_eq!(broker.publish("", &policy.queue, &message).await, Confirm::Confirmed);
    // Letters come by way of a relay of this process, and the broker's side of it is TLS.
    let found = broker.browse(&policy.queue, &Filter::default()).await.unwrap();
    assert_eq!(found.into_iter().map(|letter| letter.message).collect::<Vec<_>>(), [message]);
}

#[test]
fn a_certificate_that_the_system_trusts_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let Certificate { authority, key, cert } = Certificate::make(folder.path());
    let node = RabbitMq::start().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!(
        "application:ensure_all_started(ssl), rabbit_networking:start_ssl_listener({port}, \
         [{{certfile, \"{cert}\"}}, {{keyfile, \"{key}\"}}], 2)."
    );
    node.ctl(&["eval", &listen]).unwrap();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "publishes_over_tls_when_it_is_given_an_address", "--nocapture"])
        .env(ADDRESS, format!("amqps://guest:guest@localhost:{port}/%2f"))
        // Where the operating system's trusted certificates are looked for.
        .env("SSL_CERT_FILE", &authority)
        .output()
        .unwrap();
    let (said, why) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "{said}\n{why}");
}
