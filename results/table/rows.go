package table

import "time"

// Rows of every table carry run_id and schema_version, so that a glob over many
// runs is one dataset.
type runKey struct {
	RunID         string `col:"run_id" doc:"the run: UTC time of its start and 6 random hex digits"`
	SchemaVersion int64  `col:"schema_version" doc:"version of the tables' columns"`
}

// pointKey is repeated in samples, repeats and points, so that each can be
// filtered without a join.
type pointKey struct {
	PointID          string `col:"point_id" doc:"identity of the point: 12 hex digits over variant, method, prompt, context and concurrency; null for requests outside a point"`
	PointKey         string `col:"point_key" doc:"variant/context/concurrency: the readable name, which survives an edit of the variant"`
	Variant          string `col:"variant" doc:"name of the server configuration"`
	Engine           string `col:"engine" doc:"server program"`
	Model            string `col:"model" doc:"model as the spec names it"`
	ContextRequested *int64 `col:"context_requested" unit:"token" doc:"prompt tokens asked for"`
	Concurrency      *int64 `col:"concurrency" doc:"simultaneous requests"`
}

// RunRow is the run itself; one row.
type RunRow struct {
	runKey
	Experiment  string    `col:"experiment" doc:"name of the experiment"`
	Title       string    `col:"title" doc:"title of the spec"`
	Question    string    `col:"question" doc:"question of the spec"`
	SpecHash    string    `col:"spec_hash" doc:"SHA-256 of the spec's files"`
	ToolVersion string    `col:"tool_version" doc:"version of twopoint that measured; several, comma-separated, where a later one went on"`
	Method      string    `col:"method" doc:"way of measuring"`
	Target      string    `col:"target" doc:"where the servers ran, comma-separated"`
	Tags        string    `col:"tags" doc:"tags given by people, as a JSON list"`
	Notes       string    `col:"notes" doc:"notes by people, as a JSON list"`
	Remarks     string    `col:"remarks" doc:"what twopoint noted while it measured, as a JSON list"`
	StartedAt   time.Time `col:"started_at" doc:"first event, UTC"`
	EndedAt     time.Time `col:"ended_at" doc:"last event, UTC"`
	State       string    `col:"state" doc:"done, budget, time-limit, interrupted or error as the last stretch ended, the worst of several orders; null while one is running or after a crash"`
	Stretches   int64     `col:"stretches" doc:"times that work was begun: 1 and every resume or extend"`
	Baseline    string    `col:"baseline" doc:"variant that others are compared with"`
	Seed        int64     `col:"plan_seed" doc:"seed of the order of variants"`
	Planned     int64     `col:"points_planned" doc:"points in the plan"`
	OK          int64     `col:"points_ok" doc:"points with a value"`
	Unresolved  int64     `col:"points_unresolved" doc:"points whose clean pairs do not resolve an answer"`
	Invalid     int64     `col:"points_invalid" doc:"points with too many invalid pairs"`
	Failed      int64     `col:"points_failed" doc:"points that ended in a failure"`
	Skipped     int64     `col:"points_skipped" doc:"points not tried because of another's failure, the budget, or want of room on the server"`
	Pending     int64     `col:"points_pending" doc:"points not measured yet"`
	Hostname    string    `col:"hostname" doc:"name of the machine"`
	CPU         string    `col:"cpu" doc:"CPU model"`
	Cores       *int64    `col:"cpu_cores" doc:"logical CPUs"`
	MemoryBytes *int64    `col:"memory_bytes" unit:"byte" doc:"main memory"`
	GPU         string    `col:"gpu" doc:"GPU names, comma-separated; null where none was found"`
	GPUs        *int64    `col:"gpu_count" doc:"GPUs found"`
	Environment string    `col:"environment" doc:"environment.json as a JSON string"`
	SpecModel   string    `col:"model_geometry" doc:"geometry of the model as a JSON string"`
}

// DeploymentRow is one life of a server.
type DeploymentRow struct {
	runKey
	DeploymentID   string    `col:"deployment_id" doc:"one life of a server; names its log"`
	Variant        string    `col:"variant" doc:"name of the server configuration"`
	VariantID      string    `col:"variant_id" doc:"identity of the configuration: 12 hex digits"`
	Engine         string    `col:"engine" doc:"server program"`
	Model          string    `col:"model" doc:"model as the spec names it"`
	Managed        bool      `col:"managed" doc:"whether twopoint started the server"`
	Argv           string    `col:"argv" doc:"command line as a JSON list, secrets by name"`
	Host           string    `col:"host" doc:"address of the server"`
	Port           *int64    `col:"port" doc:"port of the server"`
	PID            *int64    `col:"pid" doc:"process id of the server"`
	LaunchedAt     time.Time `col:"launched_at" doc:"UTC; null where it failed before that"`
	LimitConnectS  *float64  `col:"limit_connect_s" unit:"s" doc:"limit in force on making a connection"`
	LimitFirstS    *float64  `col:"limit_first_token_s" unit:"s" doc:"limit in force on the first token; null: the one on going without a token alone"`
	LimitTotalS    *float64  `col:"limit_total_s" unit:"s" doc:"limit in force on a whole request; null: none"`
	LimitNoTokenS  *float64  `col:"limit_no_token_s" unit:"s" doc:"limit in force on going without a new token, at a prompt of no length"`
	LimitPerTokenS *float64  `col:"limit_no_token_s_per_prompt_tok" unit:"s/tok" doc:"what each prompt token adds to that limit"`
	LimitTokenS    *float64  `col:"limit_no_token_s_per_tok" unit:"s/tok" doc:"what each token asked for adds to it where answers do not stream"`
	Ready          bool      `col:"ready" doc:"whether the expected model answered a token"`
	LoadS          *float64  `col:"load_s" unit:"s" doc:"launch to the first answered token"`
	LifeS          *float64  `col:"life_s" unit:"s" doc:"launch to end"`
	ServerVersion  string    `col:"server_version" doc:"as the server reports it"`
	Backend        string    `col:"attention_backend" doc:"attention kernel or backend in use, as the server reports it"`
	PageSize       *int64    `col:"page_size" unit:"token" doc:"KV page size in use, as the server reports it"`
	KVDType        string    `col:"kv_dtype" doc:"data type of the KV cache in use, as the server reports it"`
	KVPoolTokens   *int64    `col:"kv_pool_tokens" unit:"token" doc:"size of the KV pool, as the server reports it"`
	ContextLimit   *int64    `col:"context_limit" unit:"token" doc:"prompt and answer together, as the server reports it"`
	ProbeHitRatio  *float64  `col:"probe_hit_ratio" doc:"cache probe: TTFT of a repeated prompt over the cold one"`
	ProbeHitCached *int64    `col:"probe_hit_cached_tokens" unit:"token" doc:"cache probe: cached tokens that the server reports for a repeated prompt; null: none reported"`
	ProbeFlushed   *int64    `col:"probe_flushed_cached_tokens" unit:"token" doc:"cache probe: the same after a flush"`
	ProbeTemplate  *int64    `col:"probe_template_tokens" unit:"token" doc:"cached tokens that a cold prompt may report: a prefix that all share"`
	ProbeFlush     *float64  `col:"probe_flush_ratio" doc:"cache probe: TTFT after a flush over the cold one"`
	FlushProven    string    `col:"flush_proven" doc:"yes, no or unknown: whether a flush makes a repeated prompt cold"`
	DriftPoint     string    `col:"drift_point_key" doc:"point that was measured once more at the end: the first one of this life"`
	DriftRatio     *float64  `col:"drift_ratio" doc:"s_per_tok of that pair over the first valid one there; 1 is no drift"`
	Expected       *bool     `col:"expected_end" doc:"whether twopoint asked it to end; null while it lives, and where twopoint itself was killed first"`
	ExitCode       *int64    `col:"exit_code" doc:"exit code of the server"`
	ExitSignal     string    `col:"exit_signal" doc:"signal that ended the server"`
	FailureKind    string    `col:"failure_kind" doc:"what it failed by; null where it did not"`
	FailureStage   string    `col:"failure_stage" doc:"build, launch, load, warmup, flush, prefill, decode or teardown"`
	FailureMessage string    `col:"failure_message" doc:"one line for people"`
	Evidence       string    `col:"evidence" doc:"the log's own lines, one a line"`
	LogTail        string    `col:"log_tail" doc:"last lines of the log at the end"`
}

// SampleRow is one request.
type SampleRow struct {
	runKey
	pointKey
	DeploymentID string    `col:"deployment_id" doc:"the server's life in which it ran"`
	Role         string    `col:"role" doc:"measure, warmup, pilot, probe, settle, gate, drift, prime or cold; only measure enters estimates, and cold (a two-point pair beside decode_at_depth) confirms or refuses them"`
	Repeat       int64     `col:"repeat" doc:"pair number within the point and role, from 1; settle: number of the request within the deployment and point; probe: 1 to 3"`
	Attempt      int64     `col:"attempt" doc:"1, or more where an earlier attempt was torn"`
	Leg          string    `col:"leg" doc:"a or b, of multi_point m1, m2, … between them; cold, again, flushed in the cache probe; needle@0.5, agree1, … of a gate"`
	Slot         int64     `col:"slot" doc:"0 to concurrency-1"`
	Second       bool      `col:"second" doc:"whether the leg ran second in its pair"`
	StartedAt    time.Time `col:"started_at" doc:"UTC wall clock; durations come from a monotonic clock"`

	TokensRequested  *int64   `col:"tokens_requested" unit:"token" doc:"generated tokens asked for"`
	PromptTokens     *int64   `col:"prompt_tokens" unit:"token" doc:"prompt tokens the server counted; null: not reported"`
	CompletionTokens *int64   `col:"completion_tokens" unit:"token" doc:"generated tokens the server counted; null: not reported"`
	LoadS            *float64 `col:"load_s" unit:"s" doc:"what of the request was spent loading the model, as the server reports it"`
	CachedTokens     *int64   `col:"cached_tokens" unit:"token" doc:"prompt tokens taken from the prefix cache; null: not reported, which is not 0"`
	Steps            *int64   `col:"steps" doc:"forward passes of decode, where reported"`
	Retractions      *int64   `col:"retractions" doc:"times the server took the request back, where reported"`
	ConnectS         *float64 `col:"connect_s" unit:"s" doc:"connection set-up, before the clock starts"`
	TotalS           *float64 `col:"total_s" unit:"s" doc:"t: first byte written to last byte read"`
	OffsetS          *float64 `col:"offset_s" unit:"s" doc:"first byte of the leg's earliest request to this one's; null at concurrency 1"`
	HeaderS          *float64 `col:"header_s" unit:"s" doc:"first byte written to the response's header"`
	TTFTS            *float64 `col:"ttft_s" unit:"s" doc:"first byte written to the first token, where it streams"`
	Streamed         bool     `col:"streamed" doc:"whether the answer came as a stream"`
	Buffered         bool     `col:"buffered" doc:"the stream arrived at once: its inner times mean nothing"`

	ServerTotalS   *float64 `col:"server_total_s" unit:"s" doc:"the server's own latency"`
	ServerPrefillS *float64 `col:"server_prefill_s" unit:"s" doc:"the server's own prefill time"`
	ServerDecode   *float64 `col:"server_decode_s_per_tok" unit:"s/tok" doc:"the server's own decode time per token"`

	ChunkS      []float64 `col:"chunk_s" unit:"s" doc:"arrival of each chunk with tokens, after the first byte written"`
	ChunkTokens []int32   `col:"chunk_tokens" unit:"token" doc:"tokens in each chunk, where known"`

	Finish       string `col:"finish" doc:"length, stop, abort, … as the server reports it"`
	OutputSHA256 string `col:"output_sha256" doc:"SHA-256 of the output's token ids, or of its text where no ids came"`
	HTTPStatus   *int64 `col:"http_status" doc:"HTTP status"`

	FlushMethod   string   `col:"flush_method" doc:"how the prefix cache was emptied before the request; null: not at all"`
	FlushOK       *bool    `col:"flush_ok" doc:"the engine's verdict; null: none given"`
	FlushAttempts *int64   `col:"flush_attempts" doc:"requests that the flush took"`
	FlushWaitS    *float64 `col:"flush_wait_s" unit:"s" doc:"time that the flush took, outside total_s"`
	FlushStatus   *int64   `col:"flush_status" doc:"HTTP status of the flush"`
	FlushDetail   string   `col:"flush_detail" doc:"what the server said to it"`

	FailureKind string `col:"failure_kind" doc:"what went wrong with the request; null: answered whole"`
	Limit       string `col:"failure_limit" doc:"limit that a timeout passed: connect, first_token, total, or no_token (derived)"`
	Transport   string `col:"transport" doc:"how the exchange broke: refused, no-route, reset, eof, timeout, http, error-event, cut or malformed"`
	Detail      string `col:"detail" doc:"the server's or the transport's words, shortened"`
	Notes       string `col:"notes" doc:"what the adapter had to do or doubts, one a line"`
}

// RepeatRow is one pair.
type RepeatRow struct {
	runKey
	pointKey
	Repeat       int64  `col:"repeat" doc:"pair number within the point, from 1"`
	Attempt      int64  `col:"attempt" doc:"1, or more where an earlier attempt was torn"`
	DeploymentID string `col:"deployment_id" doc:"the server's life in which it ran"`
	Order        string `col:"leg_order" doc:"ab or ba: which leg ran first"`
	Status       string `col:"status" doc:"complete, failed or cancelled"`
	Valid        bool   `col:"valid" doc:"whether the pair enters the estimate"`
	Reasons      string `col:"reasons" doc:"why it is invalid, comma-separated; null when valid"`
	ReasonDetail string `col:"reason_detail" doc:"the numbers behind the reasons, one a line"`
	Doubts       string `col:"doubts" doc:"what makes some of its figures null or doubtful, comma-separated"`

	TokensA       *int64   `col:"tokens_a" unit:"token" doc:"n_a: tokens generated in leg a, as the server counted"`
	TokensB       *int64   `col:"tokens_b" unit:"token" doc:"n_b: tokens generated in leg b, as the server counted"`
	TA            *float64 `col:"t_a_s" unit:"s" doc:"t_a: time of leg a; of several requests the makespan"`
	TB            *float64 `col:"t_b_s" unit:"s" doc:"t_b: time of leg b; of several requests the makespan"`
	PromptTokens  *int64   `col:"prompt_tokens" unit:"token" doc:"prompt tokens of leg a, as the server counted"`
	PromptTokensB *int64   `col:"prompt_tokens_b" unit:"token" doc:"prompt tokens of leg b, as the server counted"`
	CachedA       *int64   `col:"cached_tokens_a" unit:"token" doc:"cached prompt tokens of leg a; null: not reported"`
	CachedB       *int64   `col:"cached_tokens_b" unit:"token" doc:"cached prompt tokens of leg b; null: not reported"`
	StepsA        *float64 `col:"steps_a" doc:"forward passes of decode in leg a, where reported"`
	StepsB        *float64 `col:"steps_b" doc:"forward passes of decode in leg b, where reported"`
	TTFTA         *float64 `col:"ttft_a_s" unit:"s" doc:"time to first token of leg a, where it streams"`

	SPerTok       *float64 `col:"s_per_tok" unit:"s/tok" doc:"(t_b - t_a) / (n_b - n_a), per request; of several requests concurrency / window rate"`
	DecodeTokS    *float64 `col:"decode_tok_s" unit:"tok/s" doc:"1 / s_per_tok, per request; null where s_per_tok is not positive"`
	DecodeTotal   *float64 `col:"decode_total_tok_s" unit:"tok/s" doc:"of all requests of a leg together: concurrency / s_per_tok"`
	Makespan      *float64 `col:"makespan_s_per_tok" unit:"s/tok" doc:"slope of the legs' makespans over tokens per request; null at concurrency 1"`
	AcceptLength  *float64 `col:"accept_length" unit:"token" doc:"tokens per forward pass: (n_b - n_a) / (steps_b - steps_a)"`
	PrefillS      *float64 `col:"prefill_s" unit:"s" doc:"t_a - (n_a - 1) * s_per_tok"`
	PrefillTokS   *float64 `col:"prefill_tok_s" unit:"tok/s" doc:"prompt_tokens / prefill_s: an average over 0 to the context"`
	TTFTS         *float64 `col:"ttft_s" unit:"s" doc:"time to first token of leg b, where it streams"`
	TPOTS         *float64 `col:"tpot_s" unit:"s/tok" doc:"(t - TTFT) / (n - 1) of leg b, in-stream"`
	ITLS          *float64 `col:"itl_s" unit:"s" doc:"median gap between tokens of leg b"`
	DecodeStream  *float64 `col:"decode_stream_tok_s" unit:"tok/s" doc:"tokens after the first over first to last chunk of leg b"`
	SPerTokStream *float64 `col:"s_per_tok_stream" unit:"s/tok" doc:"first to last chunk over tokens after the first, of leg b; of several requests concurrency / window rate"`
	SPerStep      *float64 `col:"s_per_step" unit:"s" doc:"(t_b - t_a) / (steps_b - steps_a), where steps are reported"`
	SPerTokServer *float64 `col:"s_per_tok_server" unit:"s/tok" doc:"the server's own decode time per token in leg b: a second opinion"`
}

// PointRow is one planned point, measured or not. Values are null unless status
// is ok; what a flagged point measured stands in the _raw columns.
type PointRow struct {
	runKey
	pointKey
	VariantID   string `col:"variant_id" doc:"identity of the configuration: 12 hex digits"`
	Method      string `col:"method" doc:"way of measuring: two_point, multi_point and decode_at_depth estimate s_per_tok, stream estimates s_per_tok_stream"`
	Status      string `col:"status" doc:"ok, unresolved, invalid, failed, skipped or pending"`
	Reason      string `col:"reason" doc:"why the status is not ok"`
	Detail      string `col:"reason_detail" doc:"the numbers or words behind the reason"`
	Stop        string `col:"stop_reason" doc:"why measuring stopped: target, max, invalid or budget; null where it did not come so far"`
	Doubts      string `col:"doubts" doc:"what a reader should know, comma-separated"`
	DoubtDetail string `col:"doubt_detail" doc:"the numbers behind the doubts, one a line"`

	Pairs       int64    `col:"n_pairs" doc:"pairs, without those torn or tried again"`
	Valid       int64    `col:"n_valid" doc:"pairs that enter the estimate"`
	Deployments int64    `col:"n_deployments" doc:"server lives that the pairs come from; 1 means one server life"`
	A           *int64   `col:"a" unit:"token" doc:"tokens asked for in leg a"`
	B           *int64   `col:"b" unit:"token" doc:"tokens asked for in leg b"`
	Capped      string   `col:"b_capped" doc:"what kept b below what the target asks for"`
	S0          *float64 `col:"s0_s" unit:"s/tok" doc:"seconds per token in the pilot"`
	JitterS     *float64 `col:"jitter_s" unit:"s" doc:"prefill jitter in the pilot, from which b follows"`

	PromptTokens *int64 `col:"prompt_tokens" unit:"token" doc:"prompt tokens as the server counted: the mean over pairs, rounded"`
	CachedMax    *int64 `col:"cached_tokens_max" unit:"token" doc:"largest cached count of a valid pair, of any pair where status is invalid; null: not reported"`

	SPerTok         *float64 `col:"s_per_tok" unit:"s/tok" doc:"mean of the pairs' slopes"`
	SPerTokLo       *float64 `col:"s_per_tok_lo" unit:"s/tok" doc:"lower end of the interval"`
	SPerTokHi       *float64 `col:"s_per_tok_hi" unit:"s/tok" doc:"upper end of the interval"`
	SPerTokRaw      *float64 `col:"s_per_tok_raw" unit:"s/tok" doc:"the mean whatever the status"`
	SPerTokSD       *float64 `col:"s_per_tok_sd" unit:"s/tok" doc:"standard deviation of the slopes, or of their means by deployment, that the interval rests on"`
	SPerTokMedian   *float64 `col:"s_per_tok_median" unit:"s/tok" doc:"median of the pairs' slopes"`
	SPerTokMedianLo *float64 `col:"s_per_tok_median_lo" unit:"s/tok" doc:"order-statistic interval of the median, from 6 pairs on"`
	SPerTokMedianHi *float64 `col:"s_per_tok_median_hi" unit:"s/tok" doc:"order-statistic interval of the median, from 6 pairs on"`
	IntervalMethod  string   `col:"interval_method" doc:"how the intervals were computed"`
	IntervalLevel   *float64 `col:"interval_level" doc:"confidence level of the intervals"`

	DecodeTokS    *float64 `col:"decode_tok_s" unit:"tok/s" doc:"1 / s_per_tok, per request"`
	DecodeTokSLo  *float64 `col:"decode_tok_s_lo" unit:"tok/s" doc:"1 / s_per_tok_hi"`
	DecodeTokSHi  *float64 `col:"decode_tok_s_hi" unit:"tok/s" doc:"1 / s_per_tok_lo; null where that is not positive"`
	DecodeTokSRaw *float64 `col:"decode_tok_s_raw" unit:"tok/s" doc:"1 / s_per_tok_raw whatever the status"`
	DecodeTotal   *float64 `col:"decode_total_tok_s" unit:"tok/s" doc:"of all requests together: concurrency / s_per_tok"`
	DecodeTotalLo *float64 `col:"decode_total_tok_s_lo" unit:"tok/s" doc:"lower end of the interval"`
	DecodeTotalHi *float64 `col:"decode_total_tok_s_hi" unit:"tok/s" doc:"upper end of the interval"`
	Makespan      *float64 `col:"makespan_s_per_tok" unit:"s/tok" doc:"mean slope of leg makespans over tokens per request; null at concurrency 1"`

	PrefillS      *float64 `col:"prefill_s" unit:"s" doc:"mean of t_a - (n_a - 1) * s_per_tok, of several requests * makespan_s_per_tok"`
	PrefillSLo    *float64 `col:"prefill_s_lo" unit:"s" doc:"lower end of the interval"`
	PrefillSHi    *float64 `col:"prefill_s_hi" unit:"s" doc:"upper end of the interval"`
	PrefillSRaw   *float64 `col:"prefill_s_raw" unit:"s" doc:"the mean whatever the status"`
	PrefillTokS   *float64 `col:"prefill_tok_s" unit:"tok/s" doc:"prompt_tokens / prefill_s: an average over 0 to the context, not a rate at depth"`
	PrefillTokSLo *float64 `col:"prefill_tok_s_lo" unit:"tok/s" doc:"prompt_tokens / prefill_s_hi"`
	PrefillTokSHi *float64 `col:"prefill_tok_s_hi" unit:"tok/s" doc:"prompt_tokens / prefill_s_lo"`
	PrefillTokRaw *float64 `col:"prefill_tok_s_raw" unit:"tok/s" doc:"the rate whatever the status"`

	TTFTS            *float64 `col:"ttft_s" unit:"s" doc:"mean time to first token"`
	TTFTSLo          *float64 `col:"ttft_s_lo" unit:"s" doc:"lower end of the interval"`
	TTFTSHi          *float64 `col:"ttft_s_hi" unit:"s" doc:"upper end of the interval"`
	TTFTSRaw         *float64 `col:"ttft_s_raw" unit:"s" doc:"the mean whatever the status"`
	TPOTS            *float64 `col:"tpot_s" unit:"s/tok" doc:"mean in-stream time per output token of leg b"`
	ITLS             *float64 `col:"itl_s" unit:"s" doc:"mean of the pairs' median gaps between tokens"`
	DecodeStream     *float64 `col:"decode_stream_tok_s" unit:"tok/s" doc:"in-stream decode rate of leg b"`
	DecodeStreamLo   *float64 `col:"decode_stream_tok_s_lo" unit:"tok/s" doc:"lower end of the interval"`
	DecodeStreamHi   *float64 `col:"decode_stream_tok_s_hi" unit:"tok/s" doc:"upper end of the interval"`
	SPerTokStream    *float64 `col:"s_per_tok_stream" unit:"s/tok" doc:"mean of the repeats' in-stream seconds per token; the estimate of the method stream, a second opinion beside the others"`
	SPerTokStreamSD  *float64 `col:"s_per_tok_stream_sd" unit:"s/tok" doc:"sample standard deviation"`
	SPerTokStreamLo  *float64 `col:"s_per_tok_stream_lo" unit:"s/tok" doc:"lower end of the interval"`
	SPerTokStreamHi  *float64 `col:"s_per_tok_stream_hi" unit:"s/tok" doc:"upper end of the interval"`
	SPerTokStreamRaw *float64 `col:"s_per_tok_stream_raw" unit:"s/tok" doc:"the mean whatever the status"`
	SPerStep         *float64 `col:"s_per_step" unit:"s" doc:"mean seconds per forward pass, where steps are reported or a step is a token"`
	SPerStepLo       *float64 `col:"s_per_step_lo" unit:"s" doc:"lower end of the interval"`
	SPerStepHi       *float64 `col:"s_per_step_hi" unit:"s" doc:"upper end of the interval"`
	SPerStepRaw      *float64 `col:"s_per_step_raw" unit:"s" doc:"the mean whatever the status"`
	AcceptLength     *float64 `col:"accept_length" unit:"token" doc:"mean tokens per forward pass; rows compare in tok/s only where it agrees"`
	SPerTokServer    *float64 `col:"s_per_tok_server" unit:"s/tok" doc:"the server's own decode time per token: a second opinion"`

	// What the output gate says, whatever the status.
	GateNeedle    *float64 `col:"gate_needle" doc:"share of the facts planted in prompts of this context that the variant found; null: not asked for, or not known"`
	GateAgreement *float64 `col:"gate_agreement" doc:"share of a greedy answer before its first difference from the baseline's, mean over prompts; null: not asked for, not known, or this is the baseline"`
	GateSelf      *float64 `col:"gate_agreement_baseline" doc:"the same of the baseline's answers and its answers to the same prompts sent again"`

	FailureKind    string `col:"failure_kind" doc:"what went wrong, one of a closed list"`
	FailureStage   string `col:"failure_stage" doc:"build, launch, load, warmup, flush, prefill, decode or teardown"`
	FailureScope   string `col:"failure_scope" doc:"request, server, host or link"`
	Signature      string `col:"failure_signature" doc:"pattern that decided the kind"`
	FailureMessage string `col:"failure_message" doc:"one line for people"`
	Evidence       string `col:"evidence" doc:"the log's own lines, one a line"`
	ExitCode       *int64 `col:"exit_code" doc:"exit code of the server, where it ended"`
	ExitSignal     string `col:"exit_signal" doc:"signal that ended the server"`
	HTTPStatus     *int64 `col:"http_status" doc:"HTTP status of the failed request"`
	SkippedBecause string `col:"skipped_because" doc:"point_id of the failure behind a skip"`

	// What the sensors say, whatever the status.
	GPUClockMin    *float64 `col:"gpu_sm_clock_min_mhz" unit:"MHz" doc:"lowest SM clock read around the point's pairs, of the GPUs that the server is on; readings of an idle GPU left out; null: no sensor"`
	GPUClockMean   *float64 `col:"gpu_sm_clock_mean_mhz" unit:"MHz" doc:"mean of those"`
	GPUPower       *float64 `col:"gpu_power_mean_w" unit:"W" doc:"mean power of one GPU in those readings, which are made between requests"`
	GPUPowerLimit  *float64 `col:"gpu_power_limit_w" unit:"W" doc:"power cap in force, the lowest"`
	GPUTemperature *float64 `col:"gpu_temperature_max_c" unit:"degree C" doc:"highest temperature in those readings"`
	GPUThrottle    string   `col:"gpu_throttle_reasons" doc:"what held the clocks back, seen in a reading or counted by the driver, comma-separated; none: nothing; null: not reported"`
	OtherCPUs      *float64 `col:"other_cpus" doc:"CPUs in use by processes outside the run while the point was measured; null: not known"`
}

// FitRow is a line through the points of a sweep.
type FitRow struct {
	runKey
	VariantID   string `col:"variant_id" doc:"identity of the configuration: 12 hex digits"`
	Variant     string `col:"variant" doc:"name of the server configuration"`
	Concurrency int64  `col:"concurrency" doc:"simultaneous requests"`
	Quantity    string `col:"quantity" doc:"s_per_tok, s_per_step or (of the method stream) s_per_tok_stream: what is fitted over context"`
	Contexts    int64  `col:"n_contexts" doc:"points in the fit; fewer than 4 give none"`
	ContextMin  int64  `col:"context_min" unit:"token" doc:"smallest context in the fit"`
	ContextMax  int64  `col:"context_max" unit:"token" doc:"largest context in the fit"`

	Alpha   *float64 `col:"alpha_s" unit:"s" doc:"intercept: what a token costs at no context"`
	AlphaLo *float64 `col:"alpha_s_lo" unit:"s" doc:"lower end of the interval"`
	AlphaHi *float64 `col:"alpha_s_hi" unit:"s" doc:"upper end of the interval"`
	Beta    *float64 `col:"beta_s_per_ctx_tok" unit:"s/tok" doc:"context slope: seconds that one more context token adds"`
	BetaLo  *float64 `col:"beta_s_per_ctx_tok_lo" unit:"s/tok" doc:"lower end of the interval"`
	BetaHi  *float64 `col:"beta_s_per_ctx_tok_hi" unit:"s/tok" doc:"upper end of the interval"`
	Level   *float64 `col:"interval_level" doc:"confidence level of the intervals"`
	Chi2    *float64 `col:"chi2" doc:"weighted sum of squared residuals"`
	DF      *int64   `col:"df" doc:"degrees of freedom behind the intervals"`
	Scaled  *bool    `col:"scaled" doc:"whether the errors were scaled up because the line does not fit within them"`

	Exponent   *float64 `col:"exponent" doc:"slope of log s over log context"`
	ExponentLo *float64 `col:"exponent_lo" doc:"lower end of the interval"`
	ExponentHi *float64 `col:"exponent_hi" doc:"upper end of the interval"`
	Knee       *float64 `col:"knee_context" unit:"token" doc:"tokens in the KV cache at which the slope changes, where 7 contexts show it"`
	KneeP      *float64 `col:"knee_p" doc:"significance of the knee, corrected for the places tried"`
	BetaBelow  *float64 `col:"beta_below_s_per_ctx_tok" unit:"s/tok" doc:"context slope below the knee"`
	BetaAbove  *float64 `col:"beta_above_s_per_ctx_tok" unit:"s/tok" doc:"context slope above the knee"`
	Steps      string   `col:"steps" doc:"jumps between neighbouring contexts beyond twice what the line allows, as a JSON list; null where there is a knee or none"`

	KVStream   *float64 `col:"kv_stream_gb_s" unit:"GB/s" doc:"rate at which extra context is read, per device: 1e-9 * (concurrency / dp) * kv_bytes_per_ctx_tok / slope of seconds per step; not the device's utilisation"`
	KVStreamLo *float64 `col:"kv_stream_gb_s_lo" unit:"GB/s" doc:"lower end of the interval"`
	KVStreamHi *float64 `col:"kv_stream_gb_s_hi" unit:"GB/s" doc:"upper end of the interval"`
	KVBytes    *float64 `col:"kv_bytes_per_ctx_tok" unit:"byte/tok" doc:"bytes that a device reads more for one more context token, by the model's geometry"`
	PeakGBs    *float64 `col:"gpu_peak_gb_s" unit:"GB/s" doc:"nominal memory read rate of one of the machine's GPUs, by its vendor; null: no GPU, one of a name that is not known, or a server that twopoint did not start"`
	WeightsS   *float64 `col:"weights_s" unit:"s" doc:"least time in which a step can read the weights it needs: the model's active_weight_bytes / (tp * gpu_peak_gb_s * 1e9)"`
	Doubts     string   `col:"doubts" doc:"comma-separated. accept_length_differs: the slope is not compared with against's, since tokens are accepted at other lengths; that of s_per_step is. intercept_too_low: alpha_s_hi is below half of weights_s, so the line is no model of a step at a short context"`
	KVDoubts   string   `col:"kv_doubts" doc:"settings behind the rate in which the server contradicts the spec, comma-separated: tp, dp, dcp, kv_dtype; the server's word is taken"`
	Against    string   `col:"against" doc:"variant that beta_gain compares with: the baseline, else the variant declared before"`
	BetaGain   *float64 `col:"beta_gain" doc:"the other variant's context slope over this one's: how many times cheaper a context token is here"`
	BetaGainLo *float64 `col:"beta_gain_lo" doc:"lower end of the interval (Fieller)"`
	BetaGainHi *float64 `col:"beta_gain_hi" doc:"upper end of the interval (Fieller)"`
}

// ClaimRow is one published figure or statement with its verdict.
type ClaimRow struct {
	runKey
	ClaimID    string   `col:"claim_id" doc:"published block and name of the claim; of a cell its metric, variant and prompt tokens"`
	Set        string   `col:"published_set" doc:"published block of the spec"`
	Kind       string   `col:"kind" doc:"absolute, relative, ratio, order, shape, slope, bound, event or recompute"`
	Metric     string   `col:"metric" doc:"column that the claim is about"`
	Variant    string   `col:"variant" doc:"variant that the claim is about; null where it is about several"`
	PointKeys  string   `col:"point_keys" doc:"points that it was held to, comma-separated"`
	Verdict    string   `col:"verdict" doc:"reproduced, deviates, inconclusive, out_of_scope, not_measured or invalid"`
	Detail     string   `col:"detail" doc:"numbers or words behind the verdict"`
	Published  string   `col:"published" doc:"figure or statement as it is printed"`
	Measured   *float64 `col:"measured" doc:"figure that was compared, in the unit of the metric or a ratio"`
	MeasuredLo *float64 `col:"measured_lo" doc:"lower end of its interval"`
	MeasuredHi *float64 `col:"measured_hi" doc:"upper end of its interval"`
	Interval   string   `col:"interval" doc:"what the interval is: student-t, printed ± or rounding"`
	AcceptedLo *float64 `col:"accepted_lo" doc:"lower end of the range that the claim accepts; null: open"`
	AcceptedHi *float64 `col:"accepted_hi" doc:"upper end of that range; null: open"`
	Definition string   `col:"definition" doc:"how the source computes the metric; null: as twopoint does"`
	Source     string   `col:"source" doc:"title of the publication"`
	Where      string   `col:"source_where" doc:"where it stands"`
	Date       string   `col:"source_date" doc:"its date, as it says"`
	Confidence string   `col:"source_confidence" doc:"A: read in the publication itself, B: in an excerpt, C: stated in prose"`
	Why        string   `col:"why" doc:"the claim's own reason"`
}

// SettingRow is one setting of a variant, long format.
type SettingRow struct {
	runKey
	Variant  string   `col:"variant" doc:"name of the server configuration"`
	Name     string   `col:"name" doc:"name of the setting"`
	Value    string   `col:"value" doc:"value as text; free-form values as JSON"`
	ValueNum *float64 `col:"value_num" doc:"value where it is a number"`
	Source   string   `col:"source" doc:"requested (the spec) or effective (the server says so)"`
	Swept    bool     `col:"swept" doc:"whether variants of the run differ in it"`
}

// ColumnRow describes a column of a table of this run.
type ColumnRow struct {
	runKey
	Table   string `col:"table" doc:"table"`
	Column  string `col:"column" doc:"column"`
	Type    string `col:"type" doc:"Arrow type"`
	Unit    string `col:"unit" doc:"unit; null where there is none"`
	Meaning string `col:"meaning" doc:"what it says"`
}
