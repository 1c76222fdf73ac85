//! One fleet under load: three coordinators on a store of our own, and simulated workers.
//!
//! Its own file because everything that is measured stands on it, and because it knows when it has come to rest: between two
//! measurements it waits until every coordinator counts what must be there, never for a time.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use wharf_testkit::{Fleet, FleetStore, Member, eventually_within};

use crate::{
    api::{Api, Occupied},
    engine::{Engine, Server},
    gauge::Gauge,
    load,
    options::Options,
    sim::Workers,
};

const COORDINATORS: usize = 3;
/// Thousands of slots are freed, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fleet. Its fields are dropped in this order: the store last.
pub struct Bed {
    pub apis: Arc<Vec<Api>>,
    pub gauge: Gauge,
    /// Slots of all workers.
    pub slots: usize,
    simulated: Workers,
    fleet: Fleet,
    _server: Server,
}

// === impl Bed ===

impl Bed {
    pub async fn start(engine: Engine, workers: usize, options: &Options) -> Result<Self> {
        let server = engine.start().await?;
        let mut fleet = Fleet::builder()
            .store(FleetStore::Redis)
            .coordinators(COORDINATORS)
            .workers(0)
            .coordinator_flag("--queue=100000")
            .coordinator_flag("--idle-timeout=0")
            .coordinator_flag("--connect-timeout=0")
            .coordinator_flag("--queue-timeout=30m")
            .coordinator_flag("--log=warn")
            .start()
            .await?;
        // The kit's fleet brings a store whose durability is the kit's; ours is what is measured.
        for member in fleet.coordinators() {
            member.terminate().await?;
            member.set_flag("--store", &server.url());
            member.start_again().await?;
        }
        let pids: Vec<_> = fleet.coordinators().iter().map(Member::pid).collect();
        let addrs: Vec<_> = fleet.coordinators().iter().map(Member::addr).collect();
        let gauge = Gauge::new(engine, &server, pids)?;
        let simulated = Workers::start(workers, options.slots, &addrs).await?;
        let bed = Self {
            apis: Arc::new(addrs.iter().map(|addr| Api::new(*addr)).collect()),
            gauge,
            slots: workers * options.slots as usize,
            simulated,
            fleet,
            _server: server,
        };
        bed.settled(Occupied { running: 0, queued: 0 }).await?;
        Ok(bed)
    }

    /// Until this is what every coordinator counts.
    pub async fn settled(&self, wanted: Occupied) -> Result<()> {
        for api in self.apis.iter() {
            eventually_within(PATIENCE, format!("{wanted:?}"), async || {
                let seen = api.occupied().await?;
                ensure!(seen == wanted, "{seen:?}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Ends the sessions that are left, and the fleet with its leak check.
    pub async fn finish(self, in_flight: usize) -> Result<()> {
        load::end_all(&self.apis, in_flight).await?;
        self.settled(Occupied { running: 0, queued: 0 }).await?;
        drop(self.simulated);
        self.fleet.finish().await
    }
}
