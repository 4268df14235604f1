//! A process that finds the owners of sockets for another process.

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command},
    sync::Mutex,
    time::Duration,
};

use super::process_name;

/// A process that runs [`serve`]. Dropping the value ends it.
#[derive(Debug)]
pub struct Finder {
    socket: Mutex<UnixStream>,
    process: Child,
}

impl Finder {
    /// Starts `program`, which must call [`serve`] with its standard input.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(program: &mut Command) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let process = program.stdin(OwnedFd::from(other)).spawn()?;
        Ok(Self {
            socket: Mutex::new(socket),
            process,
        })
    }

    /// As [`process_name`]. After a failure of the process, no name is found any more.
    #[must_use]
    pub fn process_name(&self, inode: u32) -> Option<String> {
        let mut socket = self.socket.lock().ok()?;
        let asked = ask(&mut *socket, inode);
        if let Err(error) = &asked {
            tracing::warn!(%error, "programs of clients are not found any more: rules with `app` do not match until a restart");
            // A late answer would be taken for the answer to the next question.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        asked.ok()?
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        if let Ok(socket) = self.socket.get_mut() {
            // The process ends at the end of its input.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        let _ = self.process.wait();
    }
}

/// Sends the number of an inode. The answer is the length of a name in one byte, 0 for none, and the name.
fn ask(socket: &mut (impl Read + Write), inode: u32) -> io::Result<Option<String>> {
    socket.write_all(&inode.to_ne_bytes())?;
    let mut len = [0];
    socket.read_exact(&mut len)?;
    let mut name = vec![0; usize::from(len[0])];
    socket.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((!name.is_empty()).then_some(name))
}

/// Answers the questions of a [`Finder`] until `socket` ends.
///
/// # Errors
/// If the socket fails.
pub fn serve(socket: &mut (impl Read + Write)) -> io::Result<()> {
    loop {
        let mut inode = [0; 4];
        match socket.read_exact(&mut inode) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let name = process_name(u32::from_ne_bytes(inode)).unwrap_or_default();
        let mut answer = vec![u8::try_from(name.len()).unwrap_or(0)];
        if answer[0] > 0 {
            answer.extend_from_slice(name.as_bytes());
        }
        socket.write_all(&answer)?;
    }
}

/// Longest wait for an answer: a search on a host with tens of thousands of processes.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, os::fd::AsRawFd as _};

    use super::*;

    #[test]
    fn a_finder_answers_as_the_search_itself() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("open");
        let link = link.to_string_lossy();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let inode = inode.parse().expect("a number");
        let (mut asker, mut finder) = UnixStream::pair().expect("a pair");
        let serving = std::thread::spawn(move || serve(&mut finder));
        let asked = ask(&mut asker, inode).expect("an answer");
        let own = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(asked.as_deref(), Some(own.trim_end()));
        assert_eq!(ask(&mut asker, 1).expect("an answer"), None);
        drop(asker);
        serving.join().expect("no panic").expect("ends");
    }
}
