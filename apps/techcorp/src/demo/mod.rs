//! The demo: the shop under traffic and a scripted fault, seen live, judged by its books.

pub mod books;
pub mod scenario;
pub mod traffic;
pub mod verdict;
