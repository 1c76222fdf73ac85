//! Targets and sessions: creation, discovery, attachment, the end.
//!
//! Its own file because the rules are Chromium's and not obvious: every page sits in a *tab* target; clients that name
//! no filter see pages and not tabs, puppeteer asks for tabs and finds the page by auto-attaching below the tab.
//!
//! Invariant: a page and its tab are created and destroyed together.

use serde_json::{Value, json};

use crate::browser::{AutoAttach, Outbox, Session, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tab,
    Page,
}

pub struct Target {
    pub id: String,
    pub kind: Kind,
    pub url: String,
    pub context: String,
    /// The tab a page sits in.
    pub tab: Option<String>,
}

/// Chromium's target filter: the first entry that matches decides, no match excludes.
#[derive(Debug, Clone)]
pub struct Filter(Vec<(Option<String>, bool)>);

// === impl Kind ===

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tab => "tab",
            Self::Page => "page",
        }
    }
}

// === impl Filter ===

impl Filter {
    pub fn from_params(params: &Value) -> Self {
        let Some(entries) = params["filter"].as_array() else {
            return Self(vec![
                (Some("browser".into()), true),
                (Some("tab".into()), true),
                (None, false),
            ]);
        };
        let entry = |entry: &Value| {
            (
                entry["type"].as_str().map(str::to_owned),
                entry["exclude"].as_bool().unwrap_or_default(),
            )
        };
        Self(entries.iter().map(entry).collect())
    }

    pub fn accepts(&self, kind: &str) -> bool {
        let decided = self
            .0
            .iter()
            .find(|(wanted, _)| wanted.as_deref().is_none_or(|wanted| wanted == kind));
        decided.is_some_and(|(_, exclude)| !exclude)
    }
}

// === impl Target ===

impl Target {
    pub fn info(&self, attached: bool) -> Value {
        json!({
            "targetId": self.id,
            "type": self.kind.name(),
            "title": self.url,
            "url": self.url,
            "attached": attached,
            "canAccessOpener": false,
            "browserContextId": self.context,
        })
    }
}

// === impl State ===

impl State {
    pub fn info(&self, target: &Target) -> Value {
        target.info(
            self.clients
                .iter()
                .any(|client| client.sessions.iter().any(|s| s.target == target.id)),
        )
    }

    pub fn browser_info(&self) -> Value {
        json!({
            "targetId": self.browser_target,
            "type": "browser",
            "title": "",
            "url": "",
            "attached": true,
            "canAccessOpener": false,
        })
    }

    pub fn infos(&self, filter: &Filter) -> Vec<Value> {
        let browser = filter.accepts("browser").then(|| self.browser_info());
        let others = self.targets.iter().filter(|target| filter.accepts(target.kind.name()));
        browser
            .into_iter()
            .chain(others.map(|target| self.info(target)))
            .collect()
    }

    /// Creates a tab with its page and tells who wants to know; returns the page's id.
    pub fn create_target(&mut self, url: &str, context: String, out: &mut Outbox) -> String {
        let (tab, page) = (self.fresh_id(), self.fresh_id());
        let url = if url.is_empty() { "about:blank" } else { url };
        let target = |id: &String, kind, tab| Target {
            id: id.clone(),
            kind,
            url: url.to_owned(),
            context: context.clone(),
            tab,
        };
        self.targets.push(target(&tab, Kind::Tab, None));
        self.targets.push(target(&page, Kind::Page, Some(tab.clone())));
        for id in [&tab, &page] {
            self.announce(id, "Target.targetCreated", out);
        }
        let clients: Vec<_> = self
            .clients
            .iter()
            .filter_map(|client| Some((client.id, client.auto_attach.clone()?)))
            .collect();
        for (client, auto_attach) in clients {
            for (id, kind) in [(&tab, Kind::Tab), (&page, Kind::Page)] {
                if auto_attach.filter.accepts(kind.name()) {
                    self.attach(client, "", id, auto_attach.wait_for_debugger, out);
                }
            }
        }
        page
    }

    /// Tells every discovering client about one target.
    pub fn announce(&self, id: &str, method: &str, out: &mut Outbox) {
        let Some(target) = self.targets.iter().find(|target| target.id == id) else {
            return;
        };
        for client in &self.clients {
            if client
                .discover
                .as_ref()
                .is_some_and(|filter| filter.accepts(target.kind.name()))
            {
                client.emit("", method, json!({"targetInfo": self.info(target)}), out);
            }
        }
    }

    /// Opens a session to a target; `parent` is the session that asked for it.
    pub fn attach(
        &mut self,
        client: u64,
        parent: &str,
        target: &str,
        waiting: bool,
        out: &mut Outbox,
    ) -> Option<String> {
        let info = match self.targets.iter().find(|other| other.id == target) {
            Some(target) => target.info(true),
            None if target == self.browser_target => self.browser_info(),
            None => return None,
        };
        let id = self.fresh_id();
        let client = self.client(client)?;
        client
            .sessions
            .push(Session::new(id.clone(), target.to_owned(), parent.to_owned()));
        let event = json!({"sessionId": id, "targetInfo": info, "waitingForDebugger": waiting});
        client.emit(parent, "Target.attachedToTarget", event, out);
        Some(id)
    }

    /// Switches auto-attach of the browser (`parent` empty) and attaches to what exists already.
    pub fn auto_attach_all(&mut self, client: u64, auto_attach: Option<AutoAttach>, out: &mut Outbox) {
        let Some(entry) = self.client(client) else { return };
        entry.auto_attach.clone_from(&auto_attach);
        let held: Vec<_> = entry
            .sessions
            .iter()
            .filter(|s| s.parent.is_empty())
            .map(|s| s.target.clone())
            .collect();
        let Some(auto_attach) = auto_attach else { return };
        let wanted = self
            .targets
            .iter()
            .filter(|target| auto_attach.filter.accepts(target.kind.name()));
        let wanted: Vec<_> = wanted
            .map(|target| target.id.clone())
            .filter(|id| !held.contains(id))
            .collect();
        for id in wanted {
            self.attach(client, "", &id, false, out);
        }
    }

    /// Auto-attach below a tab: its page. Pages have nothing below them here.
    pub fn auto_attach_below(&mut self, client: u64, session: &str, out: &mut Outbox) {
        let Some(entry) = self.session(client, session) else {
            return;
        };
        if std::mem::replace(&mut entry.auto_attach, true) {
            return;
        }
        let tab = entry.target.clone();
        let pages = self.targets.iter().filter(|target| target.tab.as_ref() == Some(&tab));
        for page in pages.map(|page| page.id.clone()).collect::<Vec<_>>() {
            self.attach(client, session, &page, false, out);
        }
    }

    /// Ends a session and those opened through it.
    pub fn detach(&mut self, client: u64, session: &str, out: &mut Outbox) -> bool {
        let Some(entry) = self.client(client) else { return false };
        let Some(at) = entry.sessions.iter().position(|s| s.id == session && !s.id.is_empty()) else {
            return false;
        };
        let ended = entry.sessions.remove(at);
        let event = json!({"sessionId": ended.id, "targetId": ended.target});
        entry.emit(&ended.parent, "Target.detachedFromTarget", event, out);
        let below = entry.sessions.iter().filter(|s| s.parent == ended.id);
        for id in below.map(|s| s.id.clone()).collect::<Vec<_>>() {
            self.detach(client, &id, out);
        }
        true
    }

    /// Closes a page or tab, both of them, with their sessions.
    pub fn close_target(&mut self, id: &str, out: &mut Outbox) -> bool {
        let Some(target) = self.targets.iter().find(|target| target.id == id) else {
            return false;
        };
        let tab = target.tab.clone().unwrap_or_else(|| target.id.clone());
        let gone = |target: &Target| target.id == tab || target.tab.as_ref() == Some(&tab);
        let ids: Vec<_> = self
            .targets
            .iter()
            .filter(|t| gone(t))
            .map(|t| (t.id.clone(), t.kind))
            .collect();
        let sessions = self
            .clients
            .iter()
            .flat_map(|client| client.sessions.iter().map(|s| (client.id, s)));
        let sessions: Vec<_> = sessions
            .filter(|(_, session)| ids.iter().any(|(id, _)| *id == session.target))
            .map(|(client, session)| (client, session.id.clone()))
            .collect();
        for (client, session) in sessions {
            self.detach(client, &session, out);
        }
        self.targets
            .retain(|target| !ids.iter().any(|(id, _)| *id == target.id));
        for client in &self.clients {
            for (id, kind) in &ids {
                if client
                    .discover
                    .as_ref()
                    .is_some_and(|filter| filter.accepts(kind.name()))
                {
                    client.emit("", "Target.targetDestroyed", json!({"targetId": id}), out);
                }
            }
        }
        true
    }
}
