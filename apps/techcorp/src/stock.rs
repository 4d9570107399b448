//! What the shop sells, and to whom. Fixed, so that every run starts from the same shelves.

use crate::demo::traffic::{CUSTOMERS, DEAR, PRODUCTS, SCARCE};

/// A product with its price and what is on its shelf at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelf {
    /// The product's id.
    pub product_id: String,
    /// Its name.
    pub name: String,
    /// Its price in cents.
    pub price_cents: i64,
    /// Units at the start.
    pub units: i64,
}

/// All shelves: twenty ordinary products, one that runs out, one that no card pays for.
#[must_use]
pub fn shelves() -> Vec<Shelf> {
    const NAMES: [&str; 10] =
        ["Lamp", "Chair", "Desk", "Clock", "Kettle", "Mug", "Shelf", "Rug", "Vase", "Fan"];
    let ordinary = (1..=PRODUCTS).map(|number| {
        let index = usize::try_from(number).unwrap_or_default();
        Shelf {
            product_id: format!("p-{number}"),
            name: format!("{} {number}", NAMES[index % NAMES.len()]),
            price_cents: 999 + 250 * i64::try_from(number).unwrap_or_default(),
            units: 100_000,
        }
    });
    let scarce = Shelf {
        product_id: SCARCE.to_owned(),
        name: "Last of its kind".to_owned(),
        price_cents: 4_900,
        units: 20,
    };
    let dear = Shelf {
        product_id: DEAR.to_owned(),
        name: "Grand piano".to_owned(),
        price_cents: 1_250_000,
        units: 100_000,
    };
    ordinary.chain([scarce, dear]).collect()
}

/// All customers: (id, name).
pub fn customers() -> impl Iterator<Item = (String, String)> {
    (1..=CUSTOMERS).map(|number| (format!("c-{number}"), format!("Customer {number}")))
}
