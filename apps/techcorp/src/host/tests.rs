use http::StatusCode;
use mamparo::topology;

use super::*;

/// A client of a dependency that nobody serves, with these faults in its file.
fn client(faults: &str) -> HttpClient {
    let text = format!(
        "[service]\nname = \"orders\"\nowner = \"team\"\n\
         [dependencies.catalog]\nurl = \"http://127.0.0.1:9\"\nattempt_timeout = \"700ms\"\n\
         faults = {{ {faults} }}\n"
    );
    let policy = topology::parse("orders.toml", &text).unwrap();
    client_of(policy.dependency("catalog").unwrap(), "orders").unwrap()
}

#[tokio::test]
async fn the_faults_of_the_file_befall_calls_once_they_are_switched_on() {
    for (enabled, sent) in [("", 1), ("enabled = false, ", 1), ("enabled = true, ", 0)] {
        let client = client(&format!("{enabled}error = 1.0"));
        let error = client.get("/v1/products").send().await.unwrap_err();
        assert_eq!(client.sent(), sent, "{enabled:?}");
        let status = error.cause().and_then(HttpError::status);
        let injected = (sent == 0).then_some(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, injected, "{enabled:?}");
    }
}
