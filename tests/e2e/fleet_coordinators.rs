//! A coordinator dies: nothing elsewhere is touched, its clients go on through another one, its waiters keep their place.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use wharf_testkit::{Fleet, FleetStore, Http, eventually, patience};

use crate::fleet_support::{attach_path, count_is, create, finish, id, is_whole, listed, release, took};

/// The data of those who wait, in order.
async fn queue(http: &Http) -> Result<Vec<Value>> {
    let queue = http.get("/v1/queue").await?.expect(200)?;
    let waiting = queue["waiting"].as_array().context("no queue")?;
    Ok(waiting.iter().map(|waiter| waiter["description"].clone()).collect())
}

/// Which pages there are; whether somebody is attached to them is the clients' affair.
fn pages(targets: &Value) -> Vec<(&Value, &Value)> {
    let all = targets["targetInfos"].as_array().into_iter().flatten();
    all.map(|info| (&info["targetId"], &info["url"])).collect()
}

/// A client that waits for a session through a coordinator.
fn wait(tasks: &mut JoinSet<Result<Value>>, http: Http, name: &'static str) {
    tasks.spawn(async move {
        let http = http.header("idempotency-key", name).limit(patience() * 3);
        create(&http, json!({"description": name})).await
    });
}

#[tokio::test]
async fn coordinator_killed_clients_reattach_and_waiters_keep_their_place() -> Result<()> {
    let builder = Fleet::builder().coordinators(3).workers(1).slots(2);
    let mut fleet = builder.start().await?;
    let [dying, b, c] = [0, 1, 2].map(|index| fleet.http_at(index));
    let (first, second) = (create(&dying, json!({})).await?, create(&b, json!({})).await?);
    let mut orphaned = fleet.cdp_at(0, &attach_path(&first)).await?;
    let page = orphaned.new_page("data:text/html,state").await?;
    ensure!(!page.is_empty());
    let before = orphaned.call("Target.getTargets", json!({})).await?;
    let mut untouched = fleet.cdp_at(1, &attach_path(&second)).await?;
    let mut tasks = [JoinSet::new(), JoinSet::new(), JoinSet::new()];
    for (n, (http, name)) in [(&dying, "retries"), (&dying, "gives up"), (&b, "later")]
        .into_iter()
        .enumerate()
    {
        wait(&mut tasks[n], http.clone(), name);
        count_is(http, "queued", n + 1).await?;
    }
    ensure!(
        queue(&c).await? == ["retries", "gives up", "later"],
        "{:?}",
        queue(&c).await?
    );

    let killed = Instant::now();
    fleet.coordinators()[0].kill9()?;
    ensure!(
        orphaned.closed().await?.code.is_none(),
        "a killed process cannot say goodbye"
    );
    let began = Instant::now();
    let mut again = fleet.cdp_at(1, &attach_path(&first)).await?;
    let after = again.call("Target.getTargets", json!({})).await?;
    took("coordinator killed: client reattached, from its own retry", began);
    ensure!(pages(&after) == pages(&before), "another browser: {before} {after}");
    untouched.call("Browser.getVersion", json!({})).await?;

    for dropped in &mut tasks[..2] {
        let reply = dropped.join_next().await.context("no waiter")??;
        ensure!(reply.is_err(), "a dead coordinator answered {reply:?}");
    }
    let mut retried = JoinSet::new();
    wait(&mut retried, c.clone(), "retries");
    // The one who gave up lapses; the one who came back keeps the place before the later one.
    eventually("the place of who gave up to lapse", async || {
        let queue = queue(&b).await?;
        ensure!(queue == ["retries", "later"], "{queue:?}");
        Ok(())
    })
    .await?;
    took("coordinator killed: the ticket of a waiter who gave up lapsed", killed);
    release(&b, &id(&first)).await?;
    let served = retried.join_next().await.context("no waiter")???;
    ensure!(served["description"] == "retries", "{served}");
    ensure!(queue(&c).await? == ["later"], "{:?}", queue(&c).await?);
    ensure!(again.closed().await?.reason.starts_with("released"));
    untouched.call("Browser.getVersion", json!({})).await?;
    release(&c, &id(&second)).await?;
    let later = tasks[2].join_next().await.context("no waiter")???;
    ensure!(later["description"] == "later", "{later}");
    let gave_up = listed(&b, "/v1/sessions/history").await?;
    let gave_up = gave_up
        .iter()
        .find(|record| record["description"] == "gives up")
        .context("no record")?;
    eprintln!("the waiter who gave up ended as {}", gave_up["reason"]);
    ensure!(gave_up["reason"].is_string(), "{gave_up}");

    fleet.coordinators()[0].start_again().await?;
    release(&fleet.http_at(0), &id(&served)).await?;
    release(&fleet.http_at(0), &id(&later)).await?;
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}

/// An outage of a front door is not one of its fleet: through the balancer everybody is served all the time.
#[tokio::test]
async fn coordinator_killed_behind_nginx_is_not_noticed_by_newcomers() -> Result<()> {
    let builder = Fleet::builder().store(FleetStore::Redis).coordinators(2).workers(1);
    let mut fleet = builder.balancer(true).start().await?;
    for round in 0..2 {
        fleet.coordinators()[round].kill9()?;
        for _ in 0..10 {
            let mut client = fleet.cdp("/").await?;
            client.call("Browser.getVersion", json!({})).await?;
            client.close().await;
        }
        let reply = fleet.http().get("/readyz").await?;
        ensure!(reply.status == 200, "{}", reply.text());
        fleet.coordinators()[round].start_again().await?;
        fleet.all_available(1).await?;
        // nginx tries a server that failed again after two seconds.
        let (other, restarted) = (fleet.coordinator(1 - round).addr(), fleet.coordinator(round).addr());
        eventually("nginx to use the restarted coordinator", async || {
            fleet.http().get("/livez").await?;
            let log = std::fs::read_to_string(fleet.home().join("nginx/access.log"))?;
            let last = log
                .lines()
                .rev()
                .take(20)
                .any(|line| line.contains(&restarted.to_string()) && line.contains(" 200"));
            ensure!(last, "only {other} is used");
            Ok(())
        })
        .await?;
    }
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}

/// Longer than the liveness time to live (10 s): whoever waits for the hung one that long is given up.
const HUNG: Duration = Duration::from_secs(13);

/// A coordinator that hangs is worse than one that is dead: its connections stay. Its workers report to another one in time,
/// and its sessions are served by the others.
#[tokio::test]
async fn coordinator_that_hangs_loses_nobody() -> Result<()> {
    let mut fleet = Fleet::builder().coordinators(2).workers(2).start().await?;
    let mut events = fleet.http_at(1).events("/v1/events?type=worker.").await?;
    let session = create(&fleet.http_at(0), json!({"connect_timeout": "5m"})).await?;
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    fleet.coordinators()[0].pause()?;
    let mut client = fleet.cdp_at(1, &attach_path(&session)).await?;
    while began.elapsed() < HUNG {
        client.call("Browser.getVersion", json!({})).await?;
        let asked = Instant::now();
        let other = create(&fleet.http_at(1), json!({})).await?;
        slowest = slowest.max(asked.elapsed());
        release(&fleet.http_at(1), &id(&other)).await?;
        if let Some(event) = events.next_within(Duration::from_millis(100)).await? {
            ensure!(event.event != "worker.lost", "a worker was given up: {event:?}");
        }
    }
    eprintln!("measured: one of two coordinators hung for {HUNG:?}: slowest session through the other {slowest:?}");
    fleet.coordinators()[0].resume()?;
    fleet.all_available(2).await?;
    client.call("Browser.getVersion", json!({})).await?;
    release(&fleet.http_at(0), &id(&session)).await?;
    is_whole(&mut fleet, 4).await?;
    finish(fleet).await
}

/// Everybody migrates, everybody serves.
async fn ten_coordinators_start_at_once(store: FleetStore) -> Result<()> {
    let began = Instant::now();
    let mut fleet = Fleet::builder()
        .store(store)
        .coordinators(10)
        .workers(1)
        .start()
        .await?;
    took("ten coordinators at once on an empty store, all serving", began);
    is_whole(&mut fleet, 2).await?;
    for index in 0..10 {
        let http = fleet.http_at(index);
        ensure!(http.get("/readyz").await?.status == 200);
        let session = create(&http, json!({"data": index})).await?;
        release(&fleet.http_at(9 - index), &id(&session)).await?;
    }
    let history = listed(&fleet.http_at(5), "/v1/sessions/history").await?;
    ensure!(history.len() == 12, "{}", history.len());
    finish(fleet).await
}

#[tokio::test]
async fn ten_coordinators_start_at_once_on_an_empty_postgres() -> Result<()> {
    ten_coordinators_start_at_once(FleetStore::Postgres).await
}

#[tokio::test]
async fn ten_coordinators_start_at_once_on_an_empty_redis() -> Result<()> {
    ten_coordinators_start_at_once(FleetStore::Redis).await
}
