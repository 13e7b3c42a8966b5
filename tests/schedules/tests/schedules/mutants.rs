//! Defects of the engine, each of which a scenario must find.
