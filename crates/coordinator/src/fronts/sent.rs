//! An answer that knows whether it was sent.
//!
//! Its own file because sessions and locks share the rule: what a client asked for is its own once the answer has gone
//! out; if the connection broke before, nobody knows of it and it must be given back.

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;

/// A body with something to do when it is sent. Dropped unsent, it drops what it would have done.
pub(super) struct Sent {
    body: Full<Bytes>,
    then: Option<Box<dyn FnOnce() + Send>>,
}

// === impl Sent ===

impl Sent {
    /// JSON that, once on its way, settles what it tells of.
    pub(super) fn json<T: serde::Serialize>(
        status: StatusCode,
        body: &T,
        then: impl FnOnce() + Send + 'static,
    ) -> Response {
        let text = serde_json::to_vec(body).unwrap_or_default();
        let mut response = Response::new(Body::new(Self {
            body: Full::new(Bytes::from(text)),
            then: Some(Box::new(then)),
        }));
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    /// hyper asks for the data only while the connection stands.
    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if let Some(then) = self.then.take() {
            then();
        }
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
