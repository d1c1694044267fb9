//! Changes inputs: bits, bytes, pieces of themselves and of others, and numbers at the edges of what lengths can be.

/// The largest input.
const MOST: usize = 64 << 10;

/// Bytes that begin something large in msgpack, or are special in JSON and TOML.
const BYTES: [u8; 24] = [
    0x00, 0x7f, 0x80, 0xff, 0xc1, 0xc4, 0xc6, 0xc7, 0xc9, 0xd9, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, b'"', b'\\',
    b'{', b'}', b'[', b']', b'\n', b':', b'=',
];

/// See the module.
pub struct Mutator {
    random: fastrand::Rng,
}

impl Mutator {
    /// The same seed gives the same inputs from the same corpus.
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed) }
    }

    /// One of the inputs, changed.
    pub fn mutated(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.random.choice(inputs).cloned().unwrap_or_default();
        for _ in 0..=self.random.usize(..6) {
            self.change(&mut input, inputs);
        }
        input.truncate(MOST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.random.usize(..=input.len());
        match self.random.u8(..9) {
            0 if at < input.len() => input[at] ^= 1 << self.random.u8(..8),
            1 if at < input.len() => input[at] = self.random.u8(..),
            2 if at < input.len() => input[at] = *self.random.choice(&BYTES).unwrap_or(&0),
            3 => input.insert(at, *self.random.choice(&BYTES).unwrap_or(&0)),
            4 => {
                let end = (at + self.random.usize(..16)).min(input.len());
                input.drain(at..end);
            }
            5 => input.truncate(at),
            6 => {
                // A piece of this or another input, perhaps many times, as nesting is made of.
                let other = self.random.choice(inputs).cloned().unwrap_or_default();
                let from = self.random.usize(..=other.len());
                let to = (from + self.random.usize(..64)).min(other.len());
                let times = if self.random.u8(..20) == 0 { self.random.usize(..2_000) } else { 1 };
                let piece = other[from..to].repeat(times);
                if input.len() + piece.len() <= MOST {
                    input.splice(at..at, piece);
                }
            }
            7 => {
                let number = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff_u32];
                let bytes = self.random.choice(number).unwrap_or(0).to_be_bytes();
                let end = (at + bytes.len()).min(input.len());
                input.splice(at..end, bytes);
            }
            _ => {
                let text = [
                    "9".repeat(400),
                    "-0".into(),
                    "1e999".into(),
                    "\u{feff}".into(),
                    "é".into(),
                    "''''".into(),
                ];
                let text = self.random.choice(text).unwrap_or_default();
                input.splice(at..at, text.into_bytes());
            }
        }
    }
}
