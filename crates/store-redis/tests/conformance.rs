//! The suite that every journal must pass, against one server and against a cluster.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use wharf_journal::{
    Journal,
    conformance::{Place, Places, check, stores::Stores},
};
use wharf_store_redis::{Options, RedisJournal};
use wharf_testkit::redis::{Cluster, Server};

/// Empty journals on one address: each has a prefix of its own, and on a cluster so many slots.
struct Prefixes {
    url: String,
    next: AtomicUsize,
}

struct Prefix {
    url: String,
    options: Options,
}

#[async_trait]
impl Places for Prefixes {
    async fn empty(&self) -> Box<dyn Place> {
        let prefix = format!("grid-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let options = Options {
            prefix,
            ..Options::default()
        };
        Box::new(Prefix {
            url: self.url.clone(),
            options,
        })
    }
}

#[async_trait]
impl Place for Prefix {
    async fn open(&self) -> Arc<dyn Journal> {
        let journal = RedisJournal::connect(&self.url, self.options.clone()).await;
        Arc::new(journal.expect("the server was started for this"))
    }
}

#[tokio::test]
async fn journal_on_one_server_keeps_the_contract() {
    let server = Server::start().await.unwrap();
    check(&Prefixes {
        url: server.url(),
        next: AtomicUsize::new(0),
    })
    .await;
}

#[tokio::test]
async fn journal_on_a_cluster_keeps_the_contract() {
    let cluster = Cluster::start().await.unwrap();
    check(&Prefixes {
        url: cluster.url(),
        next: AtomicUsize::new(0),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_the_ports_contract_on_a_cluster() {
    let cluster = Cluster::start().await.unwrap();
    let prefixes = Prefixes {
        url: cluster.url(),
        next: AtomicUsize::new(0),
    };
    Stores::new(&prefixes).scenarios().await;
}

#[test]
fn store_agrees_with_the_model_and_survives_races() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start()).unwrap();
    let prefixes = Prefixes {
        url: server.url(),
        next: AtomicUsize::new(0),
    };
    let stores = Stores::new(&prefixes);
    stores.agree_with_the_model(24);
    stores.survive_races(200);
}
