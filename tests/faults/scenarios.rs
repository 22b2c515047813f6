//! Small sequences, each the shortest in which one mistake shows.
