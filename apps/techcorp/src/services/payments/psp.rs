//! What payments ask of the PSP, in payments' words.

use mamparo::call::CallError;
use mamparo::http::{HttpClient, HttpError};
use mamparo::messaging::{Answer, answer_of};
use serde::{Deserialize, Serialize};

use super::decide::AtPsp;

/// The PSP, as payments see it. Every operation carries the order's id as its key.
#[derive(Debug, Clone)]
pub struct Psp {
    client: HttpClient,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NewCharge<'a> {
    order_id: &'a str,
    customer_id: &'a str,
    amount_cents: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Charge {
    charge_id: String,
    status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refund {
    refunded_cents: i64,
}

impl Psp {
    /// The PSP behind `client`.
    #[must_use]
    pub fn new(client: HttpClient) -> Self {
        Self { client }
    }

    /// Charges an order, once: the key is the order's id, so a repetition gets the first answer.
    ///
    /// # Errors
    /// The answer to the message, when the PSP's word is not known.
    pub async fn charge(
        &self,
        order_id: &str,
        customer_id: &str,
        amount_cents: i64,
    ) -> Result<AtPsp, Answer> {
        let body = NewCharge { order_id, customer_id, amount_cents };
        let request = self.client.post("/v1/charges").idempotency_key(order_id).json(&body);
        match request.send().await {
            Ok(response) => read(&response.json::<Charge>().map_err(|error| unreadable(&error))?),
            Err(error) => match code(&error) {
                (Some(402), _) => Ok(AtPsp::Declined),
                (Some(409), Some("CHARGE_VOIDED")) => Ok(AtPsp::Voided),
                // The key is in somebody's hand: an earlier attempt of ours that timed out here and
                // goes on there. The next delivery asks how that ended.
                (Some(409), _) => Err(Answer::retry(crate::services::answers::chain(&error))),
                _ => Err(answer_of(&error)),
            },
        }
    }

    /// What the PSP knows about an order.
    ///
    /// # Errors
    /// The answer to the message, when the PSP's word is not known.
    pub async fn ask(&self, order_id: &str) -> Result<AtPsp, Answer> {
        match self.client.get(format!("/v1/charges/{order_id}")).send().await {
            Ok(response) => read(&response.json::<Charge>().map_err(|error| unreadable(&error))?),
            // Only the PSP's own word counts: the 404 of a wrong route proves nothing.
            Err(error) if code(&error) == (Some(404), Some("CHARGE_NOT_FOUND")) => {
                Ok(AtPsp::Unheard)
            }
            Err(error) => Err(answer_of(&error)),
        }
    }

    /// Gives back what was charged and bars the key from then on. How much went back: 0 when
    /// nothing had been charged.
    ///
    /// # Errors
    /// The answer to the message, when the PSP's word is not known.
    pub async fn refund(&self, order_id: &str) -> Result<i64, Answer> {
        let path = format!("/v1/charges/{order_id}/refund");
        let request = self.client.post(path).idempotency_key(format!("refund-{order_id}"));
        let response = request.send().await.map_err(|error| answer_of(&error))?;
        let refund: Refund = response.json().map_err(|error| unreadable(&error))?;
        Ok(refund.refunded_cents)
    }
}

fn read(charge: &Charge) -> Result<AtPsp, Answer> {
    match charge.status.as_str() {
        "CHARGED" => Ok(AtPsp::Charged { charge_id: charge.charge_id.clone() }),
        "DECLINED" => Ok(AtPsp::Declined),
        "VOIDED" => Ok(AtPsp::Voided),
        other => Err(Answer::RetryAfter {
            delay: None,
            reason: format!("the PSP says {other:?} of {}", charge.charge_id),
        }),
    }
}

/// A 2xx that can't be read: it may have charged, so the next attempt asks first.
fn unreadable(error: &HttpError) -> Answer {
    Answer::RetryAfter { delay: None, reason: crate::services::answers::chain(error) }
}

fn code(error: &CallError<HttpError>) -> (Option<u16>, Option<&str>) {
    let cause = error.cause();
    let status = cause.and_then(HttpError::status).map(|status| status.as_u16());
    (status, cause.and_then(HttpError::upstream_code))
}
