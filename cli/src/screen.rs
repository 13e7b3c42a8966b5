//! [`Screen`]: a terminal that is redrawn, and restored afterwards.

use crate::exit::Failure;
use crate::output;
use distlock::crossbeam_channel::{Receiver, never, unbounded};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use std::io::{self, IsTerminal, Read};
use std::thread;

/// Switches to the alternate screen, and hides the cursor and disables line wrapping there.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not report one.
const USUAL: (usize, usize) = (80, 24);

/// The terminal of standard output, with its keys if standard input is a terminal, too.
pub(crate) struct Screen {
    /// The former modes of standard input.
    before: Option<Termios>,
}

impl Screen {
    /// Opens the terminal, if standard output is one and this process is in its foreground.
    pub(crate) fn open() -> Result<Option<Self>, Failure> {
        let is_ours = tcgetpgrp(io::stdout()).is_ok_and(|group| group == getpgrp());
        if !io::stdout().is_terminal() || !is_ours {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin()).ok();
        if let Some(mut modes) = before.clone() {
            // Keys arrive at once and are not echoed. Ctrl-C remains a signal. Ctrl-Z does not,
            // because the shell would get a terminal with these modes.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
            // With 0 as `VMIN`, a read without a key would return the same as at the end of the
            // input.
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &modes)
                .map_err(|error| Failure::system("the terminal cannot be set", error))?;
        }
        // From here on, dropping `screen` restores the terminal, even if the next write fails.
        let screen = Self { before };
        output::write(ENTER)?;
        Ok(Some(screen))
    }

    /// Returns a channel of the pressed keys.
    pub(crate) fn keys(&self) -> Receiver<u8> {
        if self.before.is_none() {
            return never();
        }
        let (sender, receiver) = unbounded();
        thread::spawn(move || {
            for key in io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(key).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// Returns the numbers of columns and lines.
    pub(crate) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => USUAL,
        }
    }

    /// Replaces the content of the screen by these lines, as far as they fit.
    pub(crate) fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let (columns, rows) = Self::size();
        let fitting = lines.iter().take(rows).map(|line| {
            let line: String = output::printable(line).chars().take(columns).collect();
            line + "\x1b[K"
        });
        let text = fitting.collect::<Vec<_>>().join("\n");
        output::write(format!("\x1b[H{text}\x1b[J").as_bytes()).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal needs no restoration.
        let _gone = output::write(LEAVE);
        if let Some(before) = &self.before {
            let _gone = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
