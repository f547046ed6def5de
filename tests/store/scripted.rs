//! A server whose answers a test prescribes, whatever the request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// What it does once it was asked something.
#[derive(Clone, Debug)]
pub enum Says {
    /// These bytes, and waits for more.
    This(Vec<u8>),
    /// These bytes, and hangs up.
    Last(Vec<u8>),
    /// Nothing, ever.
    Nothing,
}

/// Starts one and returns its URL. It ends with the test.
pub fn start(says: Says) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let says = says.clone();
            thread::spawn(move || serve(stream, &says));
        }
    });
    format!("redis://127.0.0.1:{port}")
}

fn serve(mut stream: TcpStream, says: &Says) {
    let mut asked = vec![0; 1 << 16];
    while stream.read(&mut asked).is_ok_and(|length| length > 0) {
        let written = match says {
            Says::This(bytes) => stream.write_all(bytes),
            Says::Last(bytes) => stream
                .write_all(bytes)
                .and_then(|()| stream.shutdown(Shutdown::Both)),
            Says::Nothing => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}
