//! Building the wall: reads the plan, applies it step by step, and turns into the cell.
