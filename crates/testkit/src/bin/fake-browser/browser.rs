//! The browser's state: who is connected, and which targets, contexts and sessions exist.
//!
//! Its own file because every connection shares it. One lock guards all of it; what must be told to clients is put in
//! an [`Outbox`] under the lock and sent after it, so that a slow client stops nobody else.
//!
//! Invariant: a session belongs to one client and one living target; both ends take it along.

use std::{
    fs::File,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    options::Options,
    sink::Sink,
    targets::{Filter, Kind, Target},
};

pub const PRODUCT: &str = "FakeBrowser/1.0.0.0";
pub const VERSION_LINE: &str = "FakeBrowser 1.0.0.0";

/// What is to be sent once the lock is released.
pub type Outbox = Vec<(Arc<Sink>, String)>;

pub struct Browser {
    pub uuid: String,
    pub user_agent: String,
    state: Mutex<State>,
}

pub struct State {
    pub browser_target: String,
    pub default_context: String,
    pub contexts: Vec<String>,
    pub targets: Vec<Target>,
    pub clients: Vec<Client>,
    seed: u64,
    serial: u64,
}

/// One connection: a WebSocket or the pipe.
pub struct Client {
    pub id: u64,
    sink: Arc<Sink>,
    pub discover: Option<Filter>,
    pub auto_attach: Option<AutoAttach>,
    pub sessions: Vec<Session>,
}

#[derive(Clone)]
pub struct AutoAttach {
    pub filter: Filter,
    pub wait_for_debugger: bool,
}

/// A flat session; the empty id is the connection itself when it was made to a page.
pub struct Session {
    pub id: String,
    pub target: String,
    pub parent: String,
    pub auto_attach: bool,
    pub page_events: bool,
    pub lifecycle_events: bool,
    pub runtime_events: bool,
}

// === impl Browser ===

impl Browser {
    pub fn new(options: &Options) -> io::Result<Self> {
        let mut random = [0; 24];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let part = |at: usize| {
            random[at..at + 8]
                .iter()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (high, low) = (part(0), part(8));
        let uuid = format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFF,
            low >> 48 & 0xFFF,
            low & 0xFFFF_FFFF_FFFF
        );
        let mut state = State {
            browser_target: uuid.clone(),
            default_context: String::new(),
            contexts: Vec::new(),
            targets: Vec::new(),
            clients: Vec::new(),
            seed: part(16),
            serial: 0,
        };
        state.default_context = state.fresh_id();
        let context = state.default_context.clone();
        let url = options.url.as_deref().unwrap_or("about:blank");
        state.create_target(url, context, &mut Vec::new());
        let user_agent = options
            .user_agent
            .clone()
            .unwrap_or_else(|| format!("Mozilla/5.0 (X11; Linux) {PRODUCT}"));
        Ok(Self {
            uuid,
            user_agent,
            state: Mutex::new(state),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // A panic in one connection's thread must not take the others along.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new client; `page` if it connected to one target and not to the browser.
    pub fn connect(&self, sink: Arc<Sink>, page: Option<String>) -> u64 {
        let mut state = self.state();
        state.serial += 1;
        let id = state.serial;
        let sessions = page
            .map(|target| Session::new(String::new(), target, String::new()))
            .into_iter()
            .collect();
        state.clients.push(Client {
            id,
            sink,
            discover: None,
            auto_attach: None,
            sessions,
        });
        id
    }

    pub fn disconnect(&self, client: u64) {
        self.state().clients.retain(|other| other.id != client);
    }

    pub fn has_target(&self, id: &str) -> bool {
        self.state().targets.iter().any(|target| target.id == id)
    }

    pub fn version(&self) -> Value {
        json!({
            "protocolVersion": "1.3",
            "product": PRODUCT,
            "revision": "@fake",
            "userAgent": self.user_agent,
            "jsVersion": "1.0",
        })
    }

    pub fn version_document(&self, host: &str) -> Value {
        json!({
            "Browser": PRODUCT,
            "Protocol-Version": "1.3",
            "User-Agent": self.user_agent,
            "V8-Version": "1.0",
            "WebKit-Version": "537.36 (@fake)",
            "webSocketDebuggerUrl": format!("ws://{host}/devtools/browser/{}", self.uuid),
        })
    }

    pub fn list_document(&self, host: &str) -> Value {
        let state = self.state();
        let pages = state.targets.iter().filter(|target| target.kind == Kind::Page);
        pages
            .map(|page| {
                let id = &page.id;
                json!({
                    "description": "",
                    "devtoolsFrontendUrl": format!("/devtools/inspector.html?ws={host}/devtools/page/{id}"),
                    "id": id,
                    "title": page.url,
                    "type": "page",
                    "url": page.url,
                    "webSocketDebuggerUrl": format!("ws://{host}/devtools/page/{id}"),
                })
            })
            .collect()
    }
}

// === impl State ===

impl State {
    /// 32 hex digits, unlike any other of this process and, by the seed, of the others.
    pub fn fresh_id(&mut self) -> String {
        self.serial += 1;
        format!("{:016X}{:016X}", self.seed, self.serial)
    }

    pub fn client(&mut self, id: u64) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.id == id)
    }

    pub fn session(&mut self, client: u64, id: &str) -> Option<&mut Session> {
        self.client(client)?
            .sessions
            .iter_mut()
            .find(|session| session.id == id)
    }
}

// === impl Client ===

impl Client {
    pub fn emit(&self, session: &str, method: &str, params: Value, out: &mut Outbox) {
        let mut event = json!({"method": method, "params": params});
        if !session.is_empty() {
            event["sessionId"] = json!(session);
        }
        out.push((Arc::clone(&self.sink), event.to_string()));
    }
}

// === impl Session ===

impl Session {
    pub fn new(id: String, target: String, parent: String) -> Self {
        Self {
            id,
            target,
            parent,
            auto_attach: false,
            page_events: false,
            lifecycle_events: false,
            runtime_events: false,
        }
    }
}
