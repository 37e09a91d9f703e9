//! The byte-level alphabet of GPT-2: each byte as one printable character.

/// The characters' code points end here: 256 bytes, of which 68 are moved to 256 and up.
const ALPHABET_END: usize = 256 + 68;

/// Byte of each character; none for those outside of the alphabet.
const BYTES: [Option<u8>; ALPHABET_END] = {
    let mut bytes = [None; ALPHABET_END];
    let mut moved = 256;
    let mut byte = 0u8;
    loop {
        // Printable bytes of Latin-1 stand for themselves; the others take the next free code points in order.
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            bytes[byte as usize] = Some(byte);
        } else {
            bytes[moved] = Some(byte);
            moved += 1;
        }
        if byte == 255 {
            break bytes;
        }
        byte += 1;
    }
};

/// Appends the bytes of a token. One with any character outside of the alphabet, as added tokens may be, stands for
/// itself.
pub(super) fn push_token_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        match BYTES.get(character as usize).copied().flatten() {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [0; 256];
        BYTES.iter().flatten().for_each(|&byte| seen[byte as usize] += 1);
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn known_tokens() {
        for (token, expected) in [("Ġa", " a"), ("Ċ", "\n"), ("ÃŃ", "í"), ("<|im_end|>", "<|im_end|>"), ("日x", "日x")]
        {
            let mut bytes = vec![1];
            push_token_bytes(token, &mut bytes);
            assert_eq!(&bytes[1..], expected.as_bytes(), "{token}");
        }
    }
}
