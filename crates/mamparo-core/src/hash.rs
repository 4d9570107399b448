//! A number for a text that is the same on every machine and in every version, which the hashers of
//! std don't promise: stored rows, groups and graphs depend on it.

/// FNV-1a in 64 bits (Fowler, Noll, Vo). Stable and short, not secret; it never changes.
#[inline]
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
