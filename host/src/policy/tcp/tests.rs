//! Sockets of plugins against real listeners.

use std::io::{Read, Write};
use std::net::TcpListener;

use nix::sys::socket::{getsockopt, sockopt};
use wasmtime_wasi::p2::StreamError;

use super::*;

/// A connected socket with its streams, and the other end.
async fn pair() -> (Tcp, DynInputStream, DynOutputStream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tcp = Tcp::new(IpAddressFamily::Ipv4).unwrap();
    tcp.start_connect(listener.local_addr().unwrap()).unwrap();
    tcp.ready().await;
    let (input, output) = tcp.finish_connect().unwrap();
    let (other, _) = listener.accept().unwrap();
    (tcp, input, output, other)
}

async fn write_all(output: &mut DynOutputStream, mut content: &[u8]) {
    while !content.is_empty() {
        output.ready().await;
        let permit = output.check_write().unwrap().min(content.len());
        let (now, later) = content.split_at(permit);
        output.write(bytes::Bytes::copy_from_slice(now)).unwrap();
        content = later;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_does_not_hold_small_pieces_back() {
    let (tcp, _input, _output, _other) = pair().await;
    let State::Connected { stream, .. } = &tcp.state else { panic!("it is connected") };
    assert!(getsockopt(stream, sockopt::TcpNoDelay).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_arrives_whole_and_in_order_before_the_end() {
    let (tcp, _input, mut output, mut other) = pair().await;
    // Much more than the system's buffers hold, to a reader that is late.
    let content: Vec<u8> = (0..40_000_000_u32).map(|number| (number / 7) as u8).collect();
    let expected = content.clone();
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        other.read_to_end(&mut got).unwrap();
        got
    });
    write_all(&mut output, &content).await;
    let State::Connected { stream, sending } = &tcp.state else { panic!("it is connected") };
    sending.end(stream).unwrap();
    // Nobody looks at the stream meanwhile.
    assert!(reading.join().unwrap() == expected);
    output.ready().await;
    assert!(matches!(output.check_write(), Err(StreamError::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_does_not_go_out_permits_no_other() {
    let (_tcp, _input, mut output, _other) = pair().await;
    let mut taken = 0;
    // Nobody reads: at some time nothing more is permitted, and so nothing more is held in memory.
    while let Ok(permit @ 1..) = output.check_write() {
        output.write(bytes::Bytes::from(vec![0; permit])).unwrap();
        taken += permit;
        assert!(taken < 1 << 30, "{taken} bytes were taken that nobody reads");
    }
    assert!(matches!(output.write(bytes::Bytes::from_static(b"x")), Err(StreamError::Trap(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_is_read_until_the_other_side_ends() {
    let (_tcp, mut input, _output, mut other) = pair().await;
    assert!(input.read(10).unwrap().is_empty());
    other.write_all(b"abc").unwrap();
    input.ready().await;
    assert_eq!(input.read(2).unwrap(), &b"ab"[..]);
    assert_eq!(input.read(9).unwrap(), &b"c"[..]);
    drop(other);
    input.ready().await;
    assert!(matches!(input.read(1), Err(StreamError::Closed)));
    assert!(matches!(input.read(1), Err(StreamError::Closed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fails_says_why_once() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut tcp = Tcp::new(IpAddressFamily::Ipv4).unwrap();
    let code = |result: SocketResult<_>| result.map(|_: (_, _)| ()).unwrap_err().downcast().unwrap();
    assert_eq!(code(tcp.finish_connect()), ErrorCode::NotInProgress);
    tcp.start_connect(free).unwrap();
    assert_eq!(tcp.start_connect(free), Err(ErrorCode::ConcurrencyConflict));
    tcp.ready().await;
    assert_eq!(code(tcp.finish_connect()), ErrorCode::ConnectionRefused);
    assert_eq!(code(tcp.finish_connect()), ErrorCode::NotInProgress);
    assert_eq!(tcp.start_connect(free), Err(ErrorCode::InvalidState));
}

#[tokio::test]
async fn only_addresses_of_one_host_fit() {
    let (four, six) = (Tcp::new(IpAddressFamily::Ipv4).unwrap(), Tcp::new(IpAddressFamily::Ipv6).unwrap());
    for (address, fits_four, fits_six) in [
        ("192.0.2.1:1", true, false),
        ("127.0.0.1:80", true, false),
        ("192.0.2.1:0", false, false),
        ("0.0.0.0:1", false, false),
        ("224.0.0.1:1", false, false),
        ("255.255.255.255:1", false, false),
        ("[2001:db8::1]:1", false, true),
        ("[::1]:1", false, true),
        ("[::]:1", false, false),
        ("[ff02::1]:1", false, false),
        ("[::ffff:192.0.2.1]:1", false, false),
        ("[::192.0.2.1]:1", false, false),
    ] {
        let address = address.parse().unwrap();
        assert_eq!((four.fits(address), six.fits(address)), (fits_four, fits_six), "{address}");
    }
}

#[tokio::test]
async fn options_take_what_wasi_allows() {
    let tcp = Tcp::new(IpAddressFamily::Ipv4).unwrap();
    tcp.set_keep_alive(true).unwrap();
    tcp.set_keep_alive_idle(1).unwrap();
    tcp.set_keep_alive_interval(90_000_000_000).unwrap();
    tcp.set_keep_alive_count(1_000).unwrap();
    tcp.set_hop_limit(9).unwrap();
    tcp.set_receive_buffer(20_000).unwrap();
    tcp.set_send_buffer(30_000).unwrap();
    assert!(tcp.keep_alive().unwrap());
    assert_eq!(tcp.keep_alive_idle().unwrap(), 1_000_000_000);
    assert_eq!(tcp.keep_alive_interval().unwrap(), 90_000_000_000);
    assert_eq!((tcp.keep_alive_count().unwrap(), tcp.hop_limit().unwrap()), (127, 9));
    assert_eq!((tcp.receive_buffer().unwrap(), tcp.send_buffer().unwrap()), (20_000, 30_000));
    assert!(tcp.set_keep_alive_idle(0).is_err() && tcp.set_keep_alive_interval(0).is_err());
    assert!(tcp.set_keep_alive_count(0).is_err() && tcp.set_hop_limit(0).is_err());
    assert!(tcp.set_receive_buffer(0).is_err() && tcp.set_send_buffer(0).is_err());
}
