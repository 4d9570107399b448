use mamparo_testkit::database::Database;
use sqlx::{Postgres, Sqlite};

use super::*;

async fn a_store<DB: ShopDb>(address: &str) {
    let store = DB::open(address).await.unwrap();
    let tables = DB::schema(
        "CREATE TABLE IF NOT EXISTS things (
             number INTEGER PRIMARY KEY, name TEXT NOT NULL, many INTEGER, noted TEXT) STRICT;",
    );
    for _ in 0..2 {
        store.apply(&tables).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    let insert = query("INSERT INTO things (name, many, noted) VALUES ($1, $2, $3)");
    for (name, many) in [("a", Some(i64::MAX)), ("b", None), ("c", Some(-1))] {
        let insert = insert.clone().bind(name).bind(many).bind(None::<&str>);
        assert_eq!(insert.run(&mut tx).await.unwrap(), 1);
    }
    let held = query("SELECT many FROM things WHERE name = $1 :lock").bind("a");
    assert_eq!(held.first_in(&mut tx).await.unwrap(), Some((Some(i64::MAX),)));
    store.commit(tx).await.unwrap();

    let named = query("SELECT number, name, many, noted FROM things WHERE name IN (:listed)");
    let named = named.bind_list(&["c".to_owned(), "it's".to_owned(), "b".to_owned()]).unwrap();
    let mut rows: Vec<(i64, String, Option<i64>, Option<String>)> =
        named.all(&store).await.unwrap();
    rows.sort();
    assert_eq!(rows, [(2, "b".to_owned(), None, None), (3, "c".to_owned(), Some(-1), None)]);
    let none = query("SELECT number FROM things WHERE name = $1").bind("z");
    assert_eq!(none.first::<DB, (i64,)>(&store).await.unwrap(), None);
    store.close().await;
}

#[tokio::test]
async fn a_statement_means_the_same_on_sqlite() {
    a_store::<Sqlite>("sqlite::memory:").await;
}

#[tokio::test]
async fn a_statement_means_the_same_on_postgresql() {
    let database = Database::create();
    a_store::<Postgres>(&database.url()).await;
}

#[tokio::test]
async fn services_that_come_together_make_their_database_once_and_share_no_table() {
    let database = Database::create();
    // A database that is not there.
    let name = database.name().replace("mamparo", "techcorp");
    let shop = database.url().replace(database.name(), &name);
    let services = ["orders", "inventory", "payments", "psp"];
    let open = |service: &'static str| {
        let address = of_service(&shop, service).unwrap();
        async move { Postgres::open(&address).await.unwrap() }
    };
    let stores = futures_util::future::join_all(services.map(open)).await;
    for store in &stores {
        store.apply("CREATE TABLE mine (id BIGINT)").await.unwrap();
        let where_at = query("SELECT current_schema()::text");
        let (schema,): (String,) = where_at.first(store).await.unwrap().unwrap();
        assert!(services.contains(&schema.as_str()), "{schema}");
    }
    for store in &stores {
        store.close().await;
    }
    let admin = Postgres::open(&database.url()).await.unwrap();
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(admin.reader()).await.unwrap();
    admin.close().await;
}

#[test]
fn a_place_is_made_from_the_shops_address_and_from_no_other() {
    let of = |shop| of_service(shop, "orders");
    for (shop, place) in [
        ("postgres://h/techcorp", "postgres://h/techcorp?options[search_path]=orders"),
        ("postgres://h/t?a=b", "postgres://h/t?a=b&options[search_path]=orders"),
    ] {
        assert_eq!(of(shop).unwrap(), place);
    }
    for (shop, why) in [
        ("sqlite:shop.db", "share a PostgreSQL database"),
        ("postgres://h/t?options[search_path]=x", "leave search_path out"),
        ("mysql://h/t", "postgres://"),
    ] {
        let refused = of(shop).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(Engine::of("sqlite:a.db").unwrap(), Engine::Sqlite);
    assert_eq!(Engine::of("postgres://h/a").unwrap(), Engine::Postgres);
    assert!(Engine::of("a.db").is_err());
}
