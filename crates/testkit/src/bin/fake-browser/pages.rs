//! The methods of a page: `Page` and `Runtime`.
//!
//! Its own file because these are addressed to a target through a session, while [`crate::methods`] speaks to the
//! browser. There is no document behind a page, only its URL; navigation succeeds at once and fires the events that
//! puppeteer and Playwright wait for.
//!
//! Invariant: the events of a navigation go to every session of the page that asked for them, before the answer.

use serde_json::{Value, json};

use crate::{
    browser::{Outbox, State},
    evaluate::evaluate,
    methods::{Answer, Call, no_target, not_found},
};

// === impl Call ===

impl Call<'_> {
    pub fn page(&self, state: &mut State, out: &mut Outbox) -> Answer {
        let Some(target) = self.addressee(state) else {
            return Err(not_found(self.method));
        };
        let url = state
            .targets
            .iter()
            .find(|other| other.id == target)
            .map(|other| other.url.clone());
        let url = url.unwrap_or_default();
        let Some(session) = state.session(self.client, self.session) else {
            return Err(no_target());
        };
        match self.method {
            "Page.enable" => session.page_events = true,
            "Page.setLifecycleEventsEnabled" => session.lifecycle_events = true,
            "Runtime.enable" => {
                session.runtime_events = true;
                self.announce_world(state, &target, 1, "", out);
            }
            "Page.getFrameTree" => return Ok(json!({"frameTree": {"frame": frame(&target, &url)}})),
            "Page.getNavigationHistory" => {
                return Ok(json!({"currentIndex": 0, "entries": [{"id": 1, "url": url, "title": url}]}));
            }
            "Page.addScriptToEvaluateOnNewDocument" => return Ok(json!({"identifier": "1"})),
            "Page.createIsolatedWorld" => {
                self.announce_world(state, &target, 2, self.text("worldName"), out);
                return Ok(json!({"executionContextId": 2}));
            }
            "Page.navigate" => return self.navigate(state, &target, out),
            "Page.close" => drop(state.close_target(&target, out)),
            "Runtime.evaluate" => {
                return Ok(evaluate(self.text("expression"), &url, &self.browser.user_agent));
            }
            _ => return self.accepted(),
        }
        Ok(json!({}))
    }

    fn announce_world(&self, state: &mut State, target: &str, id: u32, name: &str, out: &mut Outbox) {
        let data =
            json!({"isDefault": id == 1, "type": if id == 1 { "default" } else { "isolated" }, "frameId": target});
        let context = json!({
            "id": id, "origin": "://", "name": name, "uniqueId": format!("{target}.{id}"), "auxData": data,
        });
        if let Some(client) = state.client(self.client) {
            client.emit(
                self.session,
                "Runtime.executionContextCreated",
                json!({"context": context}),
                out,
            );
        }
    }

    fn navigate(&self, state: &mut State, target: &str, out: &mut Outbox) -> Answer {
        let (url, loader) = (self.text("url").to_owned(), state.fresh_id());
        let tab = state
            .targets
            .iter()
            .find(|other| other.id == target)
            .and_then(|page| page.tab.clone());
        for other in &mut state.targets {
            if other.id == target || Some(&other.id) == tab.as_ref() {
                other.url.clone_from(&url);
            }
        }
        for id in tab.iter().map(String::as_str).chain([target]) {
            state.announce(id, "Target.targetInfoChanged", out);
        }
        for client in &state.clients {
            for session in client.sessions.iter().filter(|session| session.target == target) {
                let mut emit = |method: &str, params| client.emit(&session.id, method, params, out);
                if session.page_events {
                    emit("Page.frameStartedLoading", json!({"frameId": target}));
                    emit(
                        "Page.frameNavigated",
                        json!({"frame": frame(target, &url), "type": "Navigation"}),
                    );
                    emit("Page.domContentEventFired", json!({"timestamp": 0}));
                    emit("Page.loadEventFired", json!({"timestamp": 0}));
                    emit("Page.frameStoppedLoading", json!({"frameId": target}));
                }
                let stages: &[_] = if session.lifecycle_events {
                    &["init", "DOMContentLoaded", "load", "networkIdle"]
                } else {
                    &[]
                };
                for name in stages {
                    let event = json!({"frameId": target, "loaderId": loader, "name": name, "timestamp": 0});
                    emit("Page.lifecycleEvent", event);
                }
            }
        }
        Ok(json!({"frameId": target, "loaderId": loader}))
    }
}

fn frame(id: &str, url: &str) -> Value {
    json!({
        "id": id,
        "loaderId": id,
        "url": url,
        "domainAndRegistry": "",
        "securityOrigin": "://",
        "mimeType": "text/html",
        "secureContextType": "Secure",
        "crossOriginIsolatedContextType": "NotIsolated",
        "gatedAPIFeatures": [],
    })
}
