"""Why a variant lags: one file a cause."""
