//! The endpoints, and their OpenAPI 3.1 description, which is generated from this file and the types it names.

use core::{convert::Infallible, time::Duration};
use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json, Router,
    extract::{
        DefaultBodyLimit, Path, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{StatusCode, header},
    middleware,
    response::{
        IntoResponse, Response,
        sse::{Event as SseEvent, Sse},
    },
    routing::{delete, get, put},
};
use futures_util::{Stream, stream};
use pleach_linux::clock;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::{OpenApi, ToSchema};

use super::{
    files,
    guard::{self, Access, Right},
    history::Excerpt,
    hub::{Hub, Sample},
    live::{Live, Point},
    metrics,
    uplink::Uplink,
};
use crate::{
    control::{ControlRequest, StatusReport, server::Asker},
    events::{EVENTS, Event},
};

/// Returns the routes of the whole interface.
pub(super) fn all(hub: &Arc<Hub>, access: Access) -> Router {
    let routes = Router::new()
        .route("/v1/about", get(about))
        .route("/v1/status", get(status))
        .route("/v1/live", get(live))
        .route("/v1/live/stream", get(live_stream))
        .route("/v1/past", get(past))
        .route("/v1/events", get(events))
        .route("/v1/history", get(history))
        .route("/v1/history.csv", get(history_csv))
        .route("/v1/uplink", get(uplink))
        .route("/v1/weights", put(set_weights))
        .route("/v1/set", put(set))
        .route("/v1/clients/{name}", delete(remove_client))
        .route("/v1/openapi.json", get(description))
        .route("/metrics", get(openmetrics));
    finish(files::add(routes), hub, access)
}

/// Returns a router that serves `/metrics` alone.
pub(super) fn metrics_only(hub: &Arc<Hub>, access: Access) -> Router {
    finish(
        Router::new().route("/metrics", get(openmetrics)),
        hub,
        access,
    )
}

fn finish(routes: Router<Arc<Hub>>, hub: &Arc<Hub>, access: Access) -> Router {
    routes
        .fallback(async || problem(StatusCode::NOT_FOUND, "there is nothing of this name"))
        .method_not_allowed_fallback(async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "this cannot be done here")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(access, guard::check))
        .with_state(Arc::clone(hub))
}

/// Why a request failed.
#[derive(Debug, Serialize, ToSchema)]
struct Problem {
    /// Reason of the failure, in one line for the user.
    error: String,
}

/// Returns the response that a request failed.
pub(super) fn problem(status: StatusCode, text: impl Into<String>) -> Response {
    (status, Json(Problem { error: text.into() })).into_response()
}

fn no_answer(error: String) -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, error)
}

/// This daemon and this connection to it.
#[derive(Debug, Serialize, ToSchema)]
struct About {
    /// Version of pleach.
    version: String,
    /// Whether this request may change weights and other settings.
    may_change: bool,
}

/// New weights of links.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Weights {
    /// Weights from 1 to 1000, by name of the link.
    weights: BTreeMap<String, u32>,
}

/// A change of the scheduler or the rules of a proxy, or of the rules of a client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// As `pleach set` takes them: `scheduler` (proxy), or `app`, `port`, `destination` and `protocol` (client) with
    /// `link`, whose value `auto` removes the rule, or with `action` = `block` (client).
    set: BTreeMap<String, String>,
}

/// Answer to a successful change.
#[derive(Debug, Serialize, ToSchema)]
struct Done {
    /// Always true.
    ok: bool,
}

#[utoipa::path(get, path = "/v1/about", tag = "daemon", responses(
    (status = 200, description = "Version, and what this request's bearer may do", body = About),
))]
async fn about(Extension(right): Extension<Right>) -> Json<About> {
    Json(About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        may_change: right == Right::Change,
    })
}

#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses(
    (status = 200, description = "What `pleach status --json` prints, one second old at most", body = StatusReport),
    (status = 503, description = "The daemon does not answer", body = Problem),
))]
async fn status(State(hub): State<Arc<Hub>>) -> Response {
    match hub.sample().await {
        Ok(sample) => Json(&sample.status).into_response(),
        Err(error) => no_answer(error),
    }
}

#[utoipa::path(get, path = "/v1/live", tag = "daemon", responses(
    (status = 200, description = "Values of this second with rates, for a dashboard", body = Live),
    (status = 503, description = "The daemon does not answer", body = Problem),
))]
async fn live(State(hub): State<Arc<Hub>>) -> Response {
    match hub.sample().await {
        Ok(sample) => Json(&sample.live).into_response(),
        Err(error) => no_answer(error),
    }
}

#[utoipa::path(get, path = "/v1/past", tag = "daemon", responses(
    (status = 200, description = "The last five minutes in which somebody looked, oldest first", body = Vec<Point>),
))]
async fn past(State(hub): State<Arc<Hub>>) -> Json<Vec<Point>> {
    Json(hub.past().await)
}

#[utoipa::path(get, path = "/v1/events", tag = "daemon", responses(
    (status = 200, description = "The latest events, oldest first, at most 256", body = Vec<Event>),
))]
async fn events() -> Json<Vec<Event>> {
    Json(EVENTS.after(0))
}

/// Which section of the history is requested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    /// Begin of the section, in seconds since 1970-01-01 UTC; an hour before `to` if missing.
    from: Option<i64>,
    /// End of the section, in seconds since 1970-01-01 UTC; now if missing.
    to: Option<i64>,
}

/// Returns the section that `span` requests, or the response that refuses the request.
async fn excerpt(
    hub: &Hub,
    span: Result<Query<Span>, QueryRejection>,
) -> Result<Excerpt, Box<Response>> {
    let refuse = |status, text: String| Box::new(problem(status, text));
    let Query(Span { from, to }) =
        span.map_err(|rejection| refuse(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    let now = i64::try_from(clock::unix_seconds()).unwrap_or(i64::MAX);
    let to = to.unwrap_or(now).clamp(0, now.saturating_add(86_400));
    let from = from.unwrap_or(to - 3600).clamp(0, to);
    match hub.history(from, to).await {
        Some(Ok(excerpt)) => Ok(excerpt),
        Some(Err(error)) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, error)),
        None => {
            let text = "no history is kept; `history` in [dashboard] names a file for one";
            Err(refuse(StatusCode::NOT_FOUND, text.to_owned()))
        }
    }
}

#[utoipa::path(get, path = "/v1/history", tag = "daemon", params(
    ("from" = Option<i64>, Query, description = "Begin, in seconds since 1970-01-01 UTC; an hour before `to` if it is missing"),
    ("to" = Option<i64>, Query, description = "End; now if it is missing"),
), responses(
    (status = 200, description = "What links did, in steps of a second, a minute or an hour", body = Excerpt),
    (status = 400, description = "Not a time", body = Problem),
    (status = 404, description = "No history is kept", body = Problem),
    (status = 503, description = "The file cannot be read", body = Problem),
))]
async fn history(
    State(hub): State<Arc<Hub>>,
    span: Result<Query<Span>, QueryRejection>,
) -> Response {
    match excerpt(&hub, span).await {
        Ok(excerpt) => Json(excerpt).into_response(),
        Err(answer) => *answer,
    }
}

#[utoipa::path(get, path = "/v1/history.csv", tag = "daemon", params(
    ("from" = Option<i64>, Query, description = "Begin, in seconds since 1970-01-01 UTC; an hour before `to` if it is missing"),
    ("to" = Option<i64>, Query, description = "End; now if it is missing"),
), responses(
    (status = 200, description = "The same as CSV", body = String, content_type = "text/csv"),
    (status = 400, description = "Not a time", body = Problem),
    (status = 404, description = "No history is kept", body = Problem),
    (status = 503, description = "The file cannot be read", body = Problem),
))]
async fn history_csv(
    State(hub): State<Arc<Hub>>,
    span: Result<Query<Span>, QueryRejection>,
) -> Response {
    match excerpt(&hub, span).await {
        Ok(excerpt) => (
            [(header::CONTENT_TYPE, "text/csv; charset=utf-8")],
            excerpt.csv(),
        )
            .into_response(),
        Err(answer) => *answer,
    }
}

#[utoipa::path(get, path = "/v1/uplink", tag = "daemon", responses(
    (status = 200, description = "What an encoder may send upwards now", body = Uplink),
    (status = 404, description = "This is no client of a tunnel", body = Problem),
    (status = 503, description = "The daemon does not answer", body = Problem),
))]
async fn uplink(State(hub): State<Arc<Hub>>) -> Response {
    match hub.sample().await.map(|sample| sample.live.uplink) {
        Ok(Some(uplink)) => Json(uplink).into_response(),
        Ok(None) => problem(StatusCode::NOT_FOUND, "this is no client of a tunnel"),
        Err(error) => no_answer(error),
    }
}

#[utoipa::path(put, path = "/v1/weights", tag = "daemon", request_body = Weights, responses(
    (status = 200, description = "All links named have their new weights", body = Done),
    (status = 400, description = "The body is not JSON", body = Problem),
    (status = 403, description = "The bearer may only read", body = Problem),
    (status = 409, description = "The daemon refuses: a weight below 1 or above 1000, no link of that name, a mode without weights; no link has another weight", body = Problem),
    (status = 413, description = "The body is longer than 64 KiB", body = Problem),
    (status = 415, description = "The body is not declared as JSON", body = Problem),
    (status = 422, description = "The JSON holds no weights", body = Problem),
))]
async fn set_weights(
    State(hub): State<Arc<Hub>>,
    body: Result<Json<Weights>, JsonRejection>,
) -> Response {
    change(&hub, body, |asker, Weights { weights }| {
        asker.set_weights(weights)
    })
    .await
}

#[utoipa::path(put, path = "/v1/set", tag = "daemon", request_body = Settings, responses(
    (status = 200, description = "New connections of the proxy, or packets of the client, follow the change until the daemon ends; at a client also until a reload", body = Done),
    (status = 400, description = "The body is not JSON", body = Problem),
    (status = 403, description = "The bearer may only read", body = Problem),
    (status = 409, description = "The daemon refuses: an unknown key, value or link; too many rules; this is neither a proxy nor a client", body = Problem),
    (status = 413, description = "The body is longer than 64 KiB", body = Problem),
    (status = 415, description = "The body is not declared as JSON", body = Problem),
    (status = 422, description = "The JSON holds no settings", body = Problem),
))]
async fn set(State(hub): State<Arc<Hub>>, body: Result<Json<Settings>, JsonRejection>) -> Response {
    change(&hub, body, |asker, Settings { set }| {
        asker.ask(|reply| ControlRequest::Set(set, reply))
    })
    .await
}

/// Makes the change that the body of a request describes.
async fn change<T: Send + 'static>(
    hub: &Hub,
    body: Result<Json<T>, JsonRejection>,
    make: impl FnOnce(&Asker, T) -> Result<(), String> + Send + 'static,
) -> Response {
    match body {
        Err(rejection) => problem(rejection.status(), rejection.body_text()),
        Ok(Json(wanted)) => done(hub.change(|asker| make(asker, wanted)).await),
    }
}

#[utoipa::path(delete, path = "/v1/clients/{name}", tag = "daemon",
    params(("name" = String, Path, description = "Name of a gateway's client")), responses(
    (status = 200, description = "No client has this name, and no session of it is left", body = Done),
    (status = 403, description = "The bearer may only read", body = Problem),
    (status = 409, description = "This is no gateway", body = Problem),
))]
async fn remove_client(State(hub): State<Arc<Hub>>, Path(name): Path<String>) -> Response {
    let remove = |asker: &Asker| asker.ask(|reply| ControlRequest::RemoveClient(name, reply));
    done(hub.change(remove).await)
}

fn done(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => Json(Done { ok: true }).into_response(),
        Err(error) => problem(StatusCode::CONFLICT, error),
    }
}

#[utoipa::path(get, path = "/v1/live/stream", tag = "daemon", responses(
    (status = 200, description = "Server-sent events: `live` with a Live once a second, `events` with an array of Event when there are new ones",
        body = String, content_type = "text/event-stream"),
    (status = 503, description = "As many streams as may be are open, or the daemon does not answer", body = Problem),
))]
async fn live_stream(State(hub): State<Arc<Hub>>) -> Response {
    let Ok(permit) = Arc::clone(&hub.streams).try_acquire_owned() else {
        return problem(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{MAX_STREAMS} event streams are open; close one"),
        );
    };
    match hub.sample().await {
        Ok(sample) => Sse::new(stream_of(hub, sample, permit)).into_response(),
        Err(error) => no_answer(error),
    }
}

/// Returns a stream of events that begins with `first`. The stream ends when the daemon does not answer.
fn stream_of(
    hub: Arc<Hub>,
    first: Arc<Sample>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    let start = Streaming {
        hub,
        sample: first,
        is_told: false,
        last_event: 0,
        _permit: permit,
    };
    stream::unfold(start, |mut state| async move {
        let event = state.next().await?;
        Some((Ok(event), state))
    })
}

struct Streaming {
    hub: Arc<Hub>,
    sample: Arc<Sample>,
    /// Whether `sample` was sent.
    is_told: bool,
    last_event: u64,
    _permit: OwnedSemaphorePermit,
}

impl Streaming {
    async fn next(&mut self) -> Option<SseEvent> {
        if !self.is_told {
            self.is_told = true;
            return Some(SseEvent::default().event("live").data(&self.sample.json));
        }
        let news = EVENTS.after(self.last_event);
        if let Some(last) = news.last() {
            self.last_event = last.id;
            return SseEvent::default().event("events").json_data(news).ok();
        }
        // Wait slightly longer than the minimum interval, so that all streams get the same sample.
        tokio::time::sleep(Hub::wait(&self.sample) + Duration::from_millis(5)).await;
        self.sample = self.hub.sample().await.ok()?;
        Some(SseEvent::default().event("live").data(&self.sample.json))
    }
}

#[utoipa::path(get, path = "/metrics", tag = "metrics", responses(
    (status = 200, description = "OpenMetrics", body = String, content_type = "application/openmetrics-text"),
    (status = 503, description = "The daemon does not answer", body = Problem),
))]
async fn openmetrics(State(hub): State<Arc<Hub>>) -> Response {
    match hub.sample().await {
        Ok(sample) => (
            [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
            metrics::render(&sample.status),
        )
            .into_response(),
        Err(error) => no_answer(error),
    }
}

#[utoipa::path(get, path = "/v1/openapi.json", tag = "daemon", responses(
    (status = 200, description = "This description", body = serde_json::Value),
))]
async fn description() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}

/// The document that `/v1/openapi.json` returns.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "pleach",
        description = "A running pleach daemon, over its control socket, or over TCP if `[dashboard]` says so."
    ),
    paths(
        about,
        status,
        live,
        live_stream,
        past,
        events,
        history,
        history_csv,
        uplink,
        set_weights,
        set,
        remove_client,
        openmetrics,
        description
    ),
    components(schemas(Live, Event))
)]
pub(super) struct Description;

/// Maximum number of simultaneous event streams, over all listeners.
pub(super) const MAX_STREAMS: usize = 16;

/// Maximum size of a request body in bytes: the weights of a thousand links fit.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;
