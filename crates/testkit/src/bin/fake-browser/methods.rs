//! The CDP methods: what is answered, and how.
//!
//! Its own file because it is the table a test author looks at. The domains `Browser`, `Target`, `Page` and `Runtime`
//! answer as Chromium does as far as the grid and puppeteer's `connect()` can tell; `Fake` misbehaves; methods in
//! [`ACCEPTED`] are answered with an empty result and do nothing; all others get -32601.
//!
//! Invariant: every request with an id gets exactly one answer, after the events it caused, unless a fault was asked
//! for.

use std::{sync::Arc, thread, time::Duration};

use serde_json::{Value, json};

use crate::{
    browser::{AutoAttach, Browser, Outbox, State},
    faults,
    sink::Sink,
    targets::Filter,
};

/// Switches that clients flip while they settle in; a fake has nothing behind them.
const ACCEPTED: &[&str] = &[
    "Accessibility.enable",
    "Audits.enable",
    "Browser.setDownloadBehavior",
    "CSS.enable",
    "DOM.enable",
    "Emulation.setDefaultBackgroundColorOverride",
    "Emulation.setDeviceMetricsOverride",
    "Emulation.setEmulatedMedia",
    "Emulation.setFocusEmulationEnabled",
    "Emulation.setTouchEmulationEnabled",
    "Inspector.enable",
    "Log.enable",
    "Network.enable",
    "Network.setCacheDisabled",
    "Page.bringToFront",
    "Page.disable",
    "Page.setBypassCSP",
    "Page.setInterceptFileChooserDialog",
    "Performance.enable",
    "Runtime.addBinding",
    "Runtime.disable",
    "Runtime.runIfWaitingForDebugger",
    "Security.enable",
    "Target.activateTarget",
    "Target.setRemoteLocations",
];

pub struct Refusal(i64, String);
pub type Answer = Result<Value, Refusal>;

/// One request, with what it is addressed to.
pub struct Call<'a> {
    pub browser: &'a Browser,
    pub client: u64,
    pub session: &'a str,
    pub method: &'a str,
    params: &'a Value,
}

/// Handles one message of one client.
pub fn serve(browser: &Arc<Browser>, client: u64, sink: &Sink, message: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Value>(message) else {
        let _ = sink.send(r#"{"error":{"code":-32700,"message":"JSON: parse error"}}"#);
        return;
    };
    let (id, method) = (&request["id"], request["method"].as_str().unwrap_or_default());
    let session = request["sessionId"].as_str().unwrap_or_default();
    let mut out = Outbox::new();
    let answer = if !id.is_i64() {
        Err(Refusal(-32600, "Message must have integer 'id' property".into()))
    } else if method.starts_with("Fake.") {
        misbehave(method, &request["params"], sink)
    } else {
        let call = Call {
            browser,
            client,
            session,
            method,
            params: &request["params"],
        };
        call.answer(&mut browser.state(), &mut out)
    };
    for (sink, event) in out {
        // A client that is gone misses its events; its own thread notices.
        let _ = sink.send(&event);
    }
    let mut reply = match answer {
        Ok(result) => json!({"id": id, "result": result}),
        Err(Refusal(code, text)) => json!({"id": id, "error": {"code": code, "message": text}}),
    };
    if !session.is_empty() {
        reply["sessionId"] = json!(session);
    }
    let _ = sink.send(&reply.to_string());
    if method == "Browser.close" {
        faults::exit(0);
    }
}

/// The faults that a client can ask for. Those that end or stop the process never answer.
fn misbehave(method: &str, params: &Value, sink: &Sink) -> Answer {
    let number = |name: &str| params[name].as_u64().unwrap_or_default();
    match method {
        "Fake.crash" => faults::crash(),
        "Fake.abort" => faults::abort(),
        "Fake.exit" => faults::exit(i32::try_from(number("code")).unwrap_or(1)),
        "Fake.hang" => {
            faults::hang();
            faults::park()
        }
        "Fake.sleep" => thread::sleep(Duration::from_millis(number("ms"))),
        "Fake.allocate" => faults::allocate(number("mb")),
        "Fake.garbage" => drop(sink.raw(faults::GARBAGE)),
        "Fake.leakChild" => {
            let pid = faults::leak_child().map_err(|error| Refusal(-32000, error.to_string()))?;
            return Ok(json!({"pid": pid}));
        }
        "Fake.flood" => {
            let data = "x".repeat(usize::try_from(number("bytes")).unwrap_or_default());
            for serial in 0..number("messages") {
                let event = json!({"method": "Fake.flooded", "params": {"serial": serial, "data": data}});
                if sink.send(&event.to_string()).is_err() {
                    break;
                }
            }
        }
        _ => return Err(not_found(method)),
    }
    Ok(json!({}))
}

pub fn not_found(method: &str) -> Refusal {
    Refusal(-32601, format!("'{method}' wasn't found"))
}

pub fn no_target() -> Refusal {
    Refusal(-32602, "No target with given id found".into())
}

// === impl Call ===

impl Call<'_> {
    fn answer(&self, state: &mut State, out: &mut Outbox) -> Answer {
        if !self.session.is_empty() && state.session(self.client, self.session).is_none() {
            return Err(Refusal(-32001, "Session with given id not found.".into()));
        }
        match self.method.split_once('.') {
            Some(("Browser", "getVersion")) => Ok(self.browser.version()),
            Some(("Browser", "close")) => Ok(json!({})),
            Some(("Target", name)) => self.target(name, state, out),
            Some(("Page" | "Runtime", _)) => self.page(state, out),
            _ => self.accepted(),
        }
    }

    pub fn accepted(&self) -> Answer {
        if ACCEPTED.contains(&self.method) {
            Ok(json!({}))
        } else {
            Err(not_found(self.method))
        }
    }

    pub fn text(&self, name: &str) -> &str {
        self.params[name].as_str().unwrap_or_default()
    }

    /// The target a page method is addressed to; `None` on the browser's own connection.
    pub fn addressee(&self, state: &mut State) -> Option<String> {
        let browser = state.browser_target.clone();
        state
            .session(self.client, self.session)
            .map(|session| session.target.clone())
            .filter(|id| *id != browser)
    }

    fn target(&self, name: &str, state: &mut State, out: &mut Outbox) -> Answer {
        match name {
            "getTargets" => return Ok(json!({"targetInfos": state.infos(&Filter::from_params(self.params))})),
            "getTargetInfo" => return self.target_info(state),
            "getBrowserContexts" => {
                return Ok(json!({
                    "browserContextIds": state.contexts,
                    "defaultBrowserContextId": state.default_context,
                }));
            }
            "createBrowserContext" => {
                let context = state.fresh_id();
                state.contexts.push(context.clone());
                return Ok(json!({"browserContextId": context}));
            }
            "disposeBrowserContext" => return self.dispose_context(state, out),
            "createTarget" => return self.create_target(state, out),
            "closeTarget" => {
                let closed = state.close_target(self.text("targetId"), out);
                return if closed {
                    Ok(json!({"success": true}))
                } else {
                    Err(no_target())
                };
            }
            "attachToTarget" | "attachToBrowserTarget" => return self.attach(name, state, out),
            "detachFromTarget" => {
                let session = if self.text("sessionId").is_empty() {
                    self.session
                } else {
                    self.text("sessionId")
                };
                if !state.detach(self.client, session, out) {
                    return Err(Refusal(-32602, "No session with given id".into()));
                }
            }
            "setDiscoverTargets" => self.discover(state, out),
            "setAutoAttach" => self.auto_attach(state, out),
            _ => return self.accepted(),
        }
        Ok(json!({}))
    }

    fn target_info(&self, state: &mut State) -> Answer {
        let asked = self.text("targetId").to_owned();
        let id = if asked.is_empty() {
            self.addressee(state).unwrap_or_default()
        } else {
            asked
        };
        if id.is_empty() || id == state.browser_target {
            return Ok(json!({"targetInfo": state.browser_info()}));
        }
        let target = state
            .targets
            .iter()
            .find(|target| target.id == id)
            .ok_or_else(no_target)?;
        Ok(json!({"targetInfo": state.info(target)}))
    }

    fn create_target(&self, state: &mut State, out: &mut Outbox) -> Answer {
        let context = match self.text("browserContextId") {
            "" => state.default_context.clone(),
            id if id == state.default_context || state.contexts.iter().any(|context| context == id) => id.to_owned(),
            _ => return Err(Refusal(-32000, "Failed to find browser context with id".into())),
        };
        Ok(json!({"targetId": state.create_target(self.text("url"), context, out)}))
    }

    fn dispose_context(&self, state: &mut State, out: &mut Outbox) -> Answer {
        let context = self.text("browserContextId");
        let Some(at) = state.contexts.iter().position(|other| other == context) else {
            return Err(Refusal(-32602, "Failed to find context with id".into()));
        };
        state.contexts.remove(at);
        let inside = state.targets.iter().filter(|target| target.context == context);
        for id in inside.map(|target| target.id.clone()).collect::<Vec<_>>() {
            state.close_target(&id, out);
        }
        Ok(json!({}))
    }

    fn attach(&self, name: &str, state: &mut State, out: &mut Outbox) -> Answer {
        let target = if name == "attachToTarget" {
            self.text("targetId")
        } else {
            &state.browser_target.clone()
        };
        let session = state
            .attach(self.client, self.session, target, false, out)
            .ok_or_else(no_target)?;
        Ok(json!({"sessionId": session}))
    }

    fn discover(&self, state: &mut State, out: &mut Outbox) {
        let filter = self.params["discover"]
            .as_bool()
            .unwrap_or_default()
            .then(|| Filter::from_params(self.params));
        let infos = filter.as_ref().map(|filter| state.infos(filter)).unwrap_or_default();
        let Some(client) = state.client(self.client) else {
            return;
        };
        client.discover = filter;
        for info in infos {
            client.emit("", "Target.targetCreated", json!({"targetInfo": info}), out);
        }
    }

    fn auto_attach(&self, state: &mut State, out: &mut Outbox) {
        let on = self.params["autoAttach"].as_bool().unwrap_or_default();
        if self.addressee(state).is_some() {
            if on {
                state.auto_attach_below(self.client, self.session, out);
            }
            return;
        }
        let wait_for_debugger = self.params["waitForDebuggerOnStart"].as_bool().unwrap_or_default();
        let auto_attach = AutoAttach {
            filter: Filter::from_params(self.params),
            wait_for_debugger,
        };
        state.auto_attach_all(self.client, on.then_some(auto_attach), out);
    }
}
