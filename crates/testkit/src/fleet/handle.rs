//! `Fleet`: what a test holds and does.
//!
//! Its own file because it is the main type: members by index, clients by coordinator or through the balancer, lines by
//! name.
//!
//! Invariant: however it ends, processes and directories are gone.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{
    balancer::Balancer,
    builder::{FleetBuilder, TOKEN},
    cutter::{Cutter, Lines},
    hosts::{Hosts, Line},
    member::Member,
    ports,
    store::StoreServer,
};
use crate::{
    cdp::{Cdp, CdpError},
    eventually::eventually,
    http_client::Http,
};

/// Somebody else may take a port between our look and wharf's.
const STARTS: usize = 5;

/// A running fleet. Its fields are dropped in this order: members before the store they write to.
#[must_use = "a fleet that is not finished is killed and its leaks go unnoticed"]
pub struct Fleet {
    workers: Vec<Member>,
    coordinators: Vec<Member>,
    balancer: Option<Balancer>,
    gateway_cutters: Vec<Cutter>,
    uplink_cutters: Vec<Cutter>,
    store_cutters: Vec<Cutter>,
    _lines: Option<Lines>,
    hosts: Hosts,
    store: StoreServer,
    url: String,
    home: TempDir,
    pub(super) finished: bool,
}

// === impl Fleet ===

impl Fleet {
    /// Two coordinators and two workers with two slots each on PostgreSQL, unless told otherwise.
    pub fn builder() -> FleetBuilder {
        FleetBuilder::new()
    }

    /// What workers show to coordinators.
    #[must_use]
    pub fn token() -> &'static str {
        TOKEN
    }

    pub(super) async fn start(builder: FleetBuilder) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("wharf-fleet-").tempdir()?;
        // As the processes will carry it: a temporary directory behind a link has two names.
        let place = home.path().canonicalize()?;
        let store = StoreServer::launch(builder.store, &place).await?;
        let mut fleet = Self {
            workers: Vec::new(),
            coordinators: Vec::new(),
            balancer: None,
            gateway_cutters: Vec::new(),
            uplink_cutters: Vec::new(),
            store_cutters: Vec::new(),
            _lines: None,
            hosts: Hosts::default(),
            store,
            url: String::new(),
            home,
            finished: false,
        };
        // From here on a failure, even a cancelled test, ends what was started.
        let lines = builder.has_cutters.then(Lines::new).transpose()?;
        fleet.start_coordinators(&builder, &place, lines.as_ref()).await?;
        let addrs: Vec<_> = fleet.coordinators.iter().map(Member::addr).collect();
        if builder.has_balancer {
            let listen = match builder.has_hosts {
                true => Ipv4Addr::UNSPECIFIED,
                false => Ipv4Addr::LOCALHOST,
            };
            fleet.balancer = Some(Balancer::start(&place, &addrs, listen).await?);
        }
        fleet.url = format!("http://{}", fleet.front());
        fleet.start_workers(&builder, &place, lines.as_ref()).await?;
        fleet._lines = lines;
        fleet.all_available(builder.workers).await?;
        Ok(fleet)
    }

    /// All at once: they must not mind.
    async fn start_coordinators(
        &mut self,
        builder: &FleetBuilder,
        place: &std::path::Path,
        lines: Option<&Lines>,
    ) -> Result<()> {
        for index in 0..builder.coordinators {
            let mut store = self.store.url();
            if let (Some(lines), Some(port)) = (lines, self.store.port()) {
                let cutter = lines.cutter(vec![SocketAddr::from(([127, 0, 0, 1], port))]).await?;
                store = self.store.url_at(cutter.addr().port()).unwrap_or(store);
                self.store_cutters.push(cutter);
            }
            // The port stays the same over restarts: balancer and workers have it.
            let line = builder.coordinator_line(&format!("127.0.0.1:{}", ports::free()?), &store);
            let name = format!("coordinator-{index}");
            let mut member = Member::new(name, place, line, builder.coordinator_variables(index));
            member.spawn()?;
            self.coordinators.push(member);
        }
        for member in &mut self.coordinators {
            let mut tries = 1;
            while let Err(error) = member.ready().await {
                if tries == STARTS || !member.log().contains("could not listen") {
                    return Err(error);
                }
                tries += 1;
                member.set_flag("--listen", &format!("127.0.0.1:{}", ports::free()?));
                member.spawn()?;
            }
        }
        Ok(())
    }

    async fn start_workers(
        &mut self,
        builder: &FleetBuilder,
        place: &std::path::Path,
        lines: Option<&Lines>,
    ) -> Result<()> {
        let fronts = match &self.balancer {
            Some(balancer) => vec![balancer.addr],
            None => self.coordinators.iter().map(Member::addr).collect(),
        };
        for index in 0..builder.workers {
            let mut gateway = "127.0.0.1:0".to_owned();
            let (mut advertise, mut enter) = (None, Vec::new());
            // Not all to the same one.
            let turn = index % fronts.len();
            let targets: Vec<_> = fronts[turn..].iter().chain(&fronts[..turn]).copied().collect();
            let mut to: Vec<_> = targets.iter().map(|addr| format!("http://{addr}")).collect();
            if builder.has_hosts {
                let host = self.hosts.add()?;
                (gateway, enter) = (host.gateway().to_string(), host.enter_line());
                let ports = targets.iter().map(SocketAddr::port);
                to = ports.map(|port| format!("http://{}:{port}", host.outside())).collect();
            } else if let Some(lines) = lines {
                let own = SocketAddr::from(([127, 0, 0, 1], ports::free()?));
                let cutter = lines.cutter(vec![own]).await?;
                (gateway, advertise) = (own.to_string(), Some(cutter.url()));
                self.gateway_cutters.push(cutter);
                let uplink = lines.cutter(targets).await?;
                to = vec![uplink.url()];
                self.uplink_cutters.push(uplink);
            }
            let line = builder.worker_line(index, &gateway, advertise, &to)?;
            let name = format!("worker-{index}");
            let member = Member::new(name, place, line, builder.worker_variables(index));
            let mut member = member.through(enter);
            member.spawn()?;
            self.workers.push(member);
        }
        for (index, member) in self.workers.iter_mut().enumerate() {
            let mut tries = 1;
            while let Err(error) = member.ready().await {
                if tries == STARTS || !member.log().contains("could not listen") {
                    return Err(error);
                }
                tries += 1;
                if let Some(cutter) = self.gateway_cutters.get(index) {
                    let own = SocketAddr::from(([127, 0, 0, 1], ports::free()?));
                    member.set_flag("--gateway", &own.to_string());
                    cutter.retarget(vec![own]);
                }
                member.spawn()?;
            }
        }
        Ok(())
    }

    /// Waits until so many workers are available, as every coordinator that runs sees it.
    ///
    /// # Errors
    /// When patience runs out.
    pub async fn all_available(&self, count: usize) -> Result<()> {
        for member in self.coordinators.iter().filter(|member| member.is_running()) {
            eventually(format!("{count} workers on {}", member.name()), async || {
                let list = member.http().get("/v1/workers").await?.expect(200)?;
                let workers = list["workers"].as_array().context("no list")?;
                let available = workers.iter().filter(|worker| worker["state"] == "available").count();
                ensure!(available == count, "{available} are available: {list}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Where clients call: the balancer, or the first coordinator.
    #[must_use]
    pub fn front(&self) -> SocketAddr {
        let balancer = self.balancer.as_ref().map(|balancer| balancer.addr);
        balancer.unwrap_or_else(|| self.coordinators[0].addr())
    }

    /// [`Self::front`] as `http://…`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of the balancer, or of the first coordinator.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(self.front())
    }

    /// A client of one coordinator.
    #[must_use]
    pub fn http_at(&self, index: usize) -> Http {
        self.coordinators[index].http()
    }

    /// A CDP connection to a path, through the balancer or the first coordinator, or to a whole `ws://` URL.
    ///
    /// # Errors
    /// [`CdpError::Refused`] with the whole answer if there was one.
    pub async fn cdp(&self, path: &str) -> Result<Cdp, CdpError> {
        if path.starts_with("ws://") {
            return Cdp::connect(path).await;
        }
        Cdp::connect(&format!("ws://{}{path}", self.front())).await
    }

    /// A CDP connection to a path of one coordinator.
    ///
    /// # Errors
    /// As [`Self::cdp`].
    pub async fn cdp_at(&self, index: usize, path: &str) -> Result<Cdp, CdpError> {
        Cdp::connect(&format!("ws://{}{path}", self.coordinators[index].addr())).await
    }

    /// The coordinators, to do something to.
    pub fn coordinators(&mut self) -> &mut [Member] {
        &mut self.coordinators
    }

    /// The workers, to do something to.
    pub fn workers(&mut self) -> &mut [Member] {
        &mut self.workers
    }

    /// One coordinator, to look at.
    #[must_use]
    pub fn coordinator(&self, index: usize) -> &Member {
        &self.coordinators[index]
    }

    /// One worker, to look at.
    #[must_use]
    pub fn worker(&self, index: usize) -> &Member {
        &self.workers[index]
    }

    /// Workers, then coordinators.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.workers.iter().chain(&self.coordinators)
    }

    pub(super) fn members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.workers.iter_mut().chain(&mut self.coordinators)
    }

    /// The server behind.
    pub fn store(&mut self) -> &mut StoreServer {
        &mut self.store
    }

    /// The line from the coordinators to a worker's gateway.
    ///
    /// # Panics
    /// Without [`FleetBuilder::cutters`].
    #[must_use]
    pub fn cutter_of_gateway(&self, worker: usize) -> &Cutter {
        &self.gateway_cutters[worker]
    }

    /// The line from a worker to the coordinators.
    ///
    /// # Panics
    /// Without [`FleetBuilder::cutters`].
    #[must_use]
    pub fn cutter_of_uplink(&self, worker: usize) -> &Cutter {
        &self.uplink_cutters[worker]
    }

    /// The line from a coordinator to the store.
    ///
    /// # Panics
    /// Without [`FleetBuilder::cutters`], and when the store is a cluster or a file.
    #[must_use]
    pub fn cutter_of_store(&self, coordinator: usize) -> &Cutter {
        &self.store_cutters[coordinator]
    }

    /// The line from the coordinators to a worker's gateway, whatever it is made of: on a host of its own, all of the host's.
    ///
    /// # Panics
    /// Without [`FleetBuilder::cutters`] and [`FleetBuilder::hosts`].
    #[must_use]
    pub fn line_of_gateway(&self, worker: usize) -> Line {
        self.host_line(worker)
            .unwrap_or_else(|| Line::Proxy(self.gateway_cutters[worker].clone()))
    }

    /// The line from a worker to the coordinators, likewise.
    ///
    /// # Panics
    /// Without [`FleetBuilder::cutters`] and [`FleetBuilder::hosts`].
    #[must_use]
    pub fn line_of_uplink(&self, worker: usize) -> Line {
        self.host_line(worker)
            .unwrap_or_else(|| Line::Proxy(self.uplink_cutters[worker].clone()))
    }

    fn host_line(&self, worker: usize) -> Option<Line> {
        self.hosts.get(worker).cloned().map(Line::Host)
    }

    /// A directory for the test's own files, removed with the fleet.
    #[must_use]
    pub fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    /// All lines whole.
    pub fn heal_all(&self) {
        let all = self.gateway_cutters.iter().chain(&self.uplink_cutters);
        all.chain(&self.store_cutters).for_each(Cutter::heal);
        self.hosts.heal_all();
    }
}
