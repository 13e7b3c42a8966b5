//! `serve`: a page, metrics and JSON about the locks of the stores, read-only.
//!
//! One thread asks the stores at an interval. Every answer to a client is made of the last sample,
//! so clients cost the stores nothing, and a store that hangs delays no answer.
//!
//! - `sample`: the last sample, and who held each lock in the last minutes
//! - `metrics`: the text for Prometheus
//! - `page`: the page

mod metrics;
mod page;
mod sample;

use crate::arguments::ServeArguments;
use crate::exit::{self, Failure};
use crate::output;
use crate::signals::{self, Signals};
use crate::watch::Watched;
use distlock::Interrupt;
use distlock::crossbeam_channel::after;
use sample::Board;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tiny_http::{Header, Method, Request, Response, Server};

/// The threads that answer requests. Streams have threads of their own.
const ANSWERING: usize = 4;
/// The most streams of changes at once, because each has a thread.
const STREAMS: usize = 64;
/// The longest silence on a stream, so that a browser that is gone is noticed.
const SILENCE: Duration = Duration::from_secs(15);

/// Samples the stores and answers requests until a signal.
pub(crate) fn serve(arguments: ServeArguments) -> Result<u8, Failure> {
    let heard = Signals::block_all()?.listen(&Interrupt::new());
    let watched = Watched::read(&arguments.words, false)?;
    let clients = arguments.store.clients()?;
    let address = arguments.listen;
    if !address.ip().is_loopback() {
        let what = format!(
            "{address} can be reached by other machines, and the page has no password: listen on \
             127.0.0.1, and put a proxy in front that asks for one"
        );
        return Err(Failure::new(exit::USAGE, what));
    }
    let server = Server::http(address).map_err(|error| {
        Failure::new(
            exit::SOFTWARE,
            format_args!("cannot listen on {address}: {error}"),
        )
    })?;
    let bound = server.server_addr();
    output::report(format_args!("serves http://{bound}/"));
    let (server, board) = (Arc::new(server), Arc::new(Board::new(arguments.interval)));
    let streams = Arc::new(AtomicUsize::new(0));
    for _ in 0..ANSWERING {
        let (server, board, streams) = (server.clone(), board.clone(), streams.clone());
        thread::spawn(move || {
            while let Ok(request) = server.recv() {
                answer(request, &board, &streams);
            }
        });
    }
    let (sampled, limit) = (Arc::clone(&board), arguments.limit);
    thread::spawn(move || {
        loop {
            let rest = sampled.take(|| watched.ask(&clients, &limit));
            let _due = after(rest).recv();
        }
    });
    let ended = heard.iter().find(|&signal| signals::ends(signal));
    let unheard = || Failure::new(exit::SOFTWARE, "cannot wait for signals");
    ended.map(exit::of_signal).ok_or_else(unheard)
}

/// Answers one request.
fn answer(request: Request, board: &Arc<Board>, streams: &Arc<AtomicUsize>) {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return send(
            request,
            405,
            "text/plain",
            "there is nothing to change here\n".into(),
        );
    }
    let path = request.url().split('?').next().unwrap_or_default();
    match path {
        "/" => send(request, 200, "text/html; charset=utf-8", page::page(board)),
        "/metrics" => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            send(request, 200, kind, metrics::text(board));
        }
        "/api/locks" => send(request, 200, "application/json", page::json(board)),
        "/healthz" => match board.health() {
            Ok(text) => send(request, 200, "text/plain", text),
            Err(text) => send(request, 503, "text/plain", text),
        },
        "/changes" => stream(request, board, streams),
        _ => send(request, 404, "text/plain", "there is no such page\n".into()),
    }
}

/// Sends an answer. What a client does with it is the client's affair.
fn send(request: Request, status: u16, kind: &str, text: String) {
    let mut response = Response::from_string(text).with_status_code(status);
    for (name, value) in [
        ("Content-Type", kind),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        (
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src \
             'self'",
        ),
    ] {
        if let Ok(header) = Header::from_bytes(name, value) {
            response.add_header(header);
        }
    }
    let _client_may_be_gone = request.respond(response);
}

/// Sends the table again after each sample, as server-sent events, until the client is gone.
fn stream(request: Request, board: &Arc<Board>, streams: &Arc<AtomicUsize>) {
    if streams.fetch_add(1, Ordering::SeqCst) >= STREAMS {
        streams.fetch_sub(1, Ordering::SeqCst);
        return send(
            request,
            503,
            "text/plain",
            "too many pages are open\n".into(),
        );
    }
    let (board, streams) = (Arc::clone(board), Arc::clone(streams));
    thread::spawn(move || {
        let mut client = request.into_writer();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
                    Connection: close\r\n\r\n";
        let mut seen = 0;
        let mut sent = client.write_all(head.as_bytes());
        while sent.is_ok() {
            let event = match board.wait_for_another(seen, SILENCE) {
                Some(number) => {
                    seen = number;
                    format!("data: {}\n\n", page::json(&board))
                }
                None => ": still here\n\n".to_owned(),
            };
            sent = client
                .write_all(event.as_bytes())
                .and_then(|()| client.flush());
        }
        streams.fetch_sub(1, Ordering::SeqCst);
    });
}
