//! Real child processes: what an operator sees of a start and of a stop.
//!
//! They run `examples/minimal.rs`, which cargo builds together with the tests.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::path::PathBuf;
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const GOOD: &str = "[service]\nname = \"minimal\"\nowner = \"team-minimal\"\n";

fn example() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target/debug/deps");
    let path = folder.join("examples/minimal");
    assert!(path.exists(), "run `cargo build -p mamparo-service --example minimal` first");
    path
}

/// Starts the example with a policy file of this text.
fn start(folder: &tempfile::TempDir, text: &str) -> Child {
    let file = folder.path().join("minimal.toml");
    std::fs::write(&file, text).expect("a temporary folder can be written");
    Command::new(example())
        .arg(file)
        .current_dir(folder.path())
        .env("MAMPARO_LOG_FORMAT", "json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the example starts")
}

/// Runs it to its end.
async fn run(text: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    start(&folder, text).wait_with_output().await.expect("the example ends")
}

/// The address that the example prints once it listens.
async fn address(child: &mut Child) -> String {
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await.expect("stdout can be read");
    line.trim().to_owned()
}

async fn send(signal: &str, child: &Child) {
    let id = child.id().expect("it runs").to_string();
    let kill = Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).status().await;
    assert!(kill.expect("sh runs").success());
}

#[tokio::test]
async fn a_bad_file_ends_the_process_with_2_and_names_every_key_before_anything_starts() {
    let output = run("[service]\nnme = \"minimal\"\nowner = 7\nlisten = \"nowhere\"\n").await;
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty(), "it must not listen");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("fatal: the configuration has 4 mistakes"), "{stderr}");
    for part in [
        "minimal.toml:1: service.name: missing required key",
        "minimal.toml:2: service.nme: unknown key\n  hint: did you mean name?",
        "minimal.toml:3: service.owner: expected a string, found an integer",
        "minimal.toml:4: service.listen: is not a socket address",
    ] {
        assert!(stderr.contains(part), "{part}\n{stderr}");
    }
}

#[tokio::test]
async fn a_bad_setting_of_the_application_ends_it_with_2_too() {
    let output = run(&format!("{GOOD}[settings]\nworkr = \"steady\"\n")).await;
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("minimal.toml:5: settings.workr: unknown key"), "{stderr}");
    assert!(stderr.contains("hint: did you mean worker?"), "{stderr}");
}

#[tokio::test]
async fn sigterm_leads_through_every_step_and_ends_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(&folder, GOOD);
    let address = address(&mut child).await;
    let mut answer = String::new();
    TcpStream::connect(&address).await.unwrap().read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "ready\n");
    send("TERM", &child).await;
    let output = child.wait_with_output().await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("SIGTERM"), "{stderr}");
    assert_eq!(stderr.matches("shutdown step done").count(), 8, "{stderr}");
    assert!(TcpStream::connect(&address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_panic_in_an_essential_task_ends_the_process_with_1_and_says_which() {
    let output = run(&format!("{GOOD}[settings]\nworker = \"panics\"\n")).await;
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the worker lost its mind"), "{stderr}");
    assert!(stderr.contains("task lost: the process ends"), "{stderr}");

    let output = run(&format!("{GOOD}[settings]\nworker = \"ends\"\n")).await;
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(&folder, &format!("{GOOD}[settings]\nslow_stop = true\n"));
    address(&mut child).await;
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    send("TERM", &child).await;
    // The step before the one that hangs is over: the shutdown is under way.
    loop {
        let line = stderr.next_line().await.unwrap().expect("the log goes on");
        if line.contains("stop workers") {
            break;
        }
    }
    send("INT", &child).await;
    let status = child.wait().await.unwrap();
    assert_eq!(status.code(), Some(130));
}
