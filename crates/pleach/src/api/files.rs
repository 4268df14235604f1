//! The dashboard's files, which are compiled into the program.

use axum::{
    Router,
    http::header,
    response::{IntoResponse as _, Response},
    routing::get,
};

/// URL path, content type and content of each file.
const FILES: [(&str, &str, &str); 6] = [
    ("/", HTML, include_str!("../../dashboard/index.html")),
    (
        "/dashboard.css",
        CSS,
        include_str!("../../dashboard/dashboard.css"),
    ),
    (
        "/dashboard.js",
        JAVASCRIPT,
        include_str!("../../dashboard/dashboard.js"),
    ),
    (
        "/picture.js",
        JAVASCRIPT,
        include_str!("../../dashboard/picture.js"),
    ),
    (
        "/tools.js",
        JAVASCRIPT,
        include_str!("../../dashboard/tools.js"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../../dashboard/icon.svg"),
    ),
];

const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Adds the dashboard's files to `routes`.
pub(super) fn add<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    FILES.iter().fold(routes, |routes, (path, kind, content)| {
        routes.route(path, get(async || file(kind, content)))
    })
}

/// Whether `path` is a dashboard file, for which no token is needed.
pub(super) fn is_open(path: &str) -> bool {
    FILES.iter().any(|(known, _, _)| *known == path)
}

fn file(kind: &'static str, content: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], content).into_response()
}
