//! One client process of a test: connects to the daemon, waits for a line on its standard input, hands over one return and says
//! what became of it. Its arguments: the socket, the returner, the options as JSON, the return as JSON.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use std::path::Path;

use returnerd_tests::client::Client;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, returner, opts, ret] = arguments.as_slice() else { panic!("it takes four arguments") };
    let client = Client::connect(Path::new(socket)).expect("the daemon takes connections");
    let mut client = client.with_opts(serde_json::from_str(opts).unwrap());
    println!("connected");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    client.return_(returner, serde_json::from_str(ret).unwrap()).done();
    println!("acknowledged");
}
