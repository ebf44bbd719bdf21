"""Pages, tables and figures of the papers that this package follows, made anew."""
