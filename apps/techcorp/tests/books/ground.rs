//! A fresh database of either kind, as often as a test wants one.

use mamparo::store::Store;
use mamparo_testkit::database::Database;
use sqlx::{Postgres, Sqlite};
use techcorp::db::{ShopDb, of_service};

/// What hands out databases. They are gone with it.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    database: Option<Database>,
    given: u32,
}

/// A database that tests can have.
pub(crate) trait Fresh: ShopDb {
    /// Makes every UPDATE of `orders` change nothing, as one does that came too late.
    const RACE: &'static str;

    /// The address of an empty one.
    fn address(ground: &mut Ground) -> String;

    /// An empty one with these tables.
    fn fresh(ground: &mut Ground, tables: &str) -> impl Future<Output = Store<Self>> {
        let address = Self::address(ground);
        async move {
            let store = Self::open(&address).await.unwrap();
            store.apply(&Self::schema(tables)).await.unwrap();
            store
        }
    }
}

impl Fresh for Sqlite {
    const RACE: &'static str =
        "CREATE TRIGGER race BEFORE UPDATE ON orders BEGIN SELECT RAISE(IGNORE); END";

    fn address(_: &mut Ground) -> String {
        "sqlite::memory:".to_owned()
    }
}

impl Fresh for Postgres {
    const RACE: &'static str = "
        CREATE FUNCTION race() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER race BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION race();";

    fn address(ground: &mut Ground) -> String {
        let database = ground.database.get_or_insert_with(Database::create);
        ground.given += 1;
        of_service(&database.url(), &format!("test_{}", ground.given)).unwrap()
    }
}

/// Runs tests that are written for any database on both.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name::<sqlx::Sqlite>().await;
            })+
        }

        mod on_postgresql {
            $(#[tokio::test]
            async fn $name() {
                super::$name::<sqlx::Postgres>().await;
            })+
        }
    };
}

pub(crate) use on_both;
