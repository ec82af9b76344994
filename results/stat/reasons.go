package stat

// Code names why something is invalid, unresolved or doubtful. The lists below
// are closed; tables and reports show the codes as they are.
type Code string

// Reasons that make a pair invalid. Each is evidence other than the value that
// the pair estimates: no pair is dropped because its slope is unlikely.
const (
	// CacheHit: a leg reports more cached prompt tokens than the common
	// template prefix or one block accounts for.
	CacheHit Code = "cache_hit"
	// CacheSuspected: no cached count is reported, no nonce and flush of all legs
	// stand in for it, and one leg's time to first token is below 0.6 of its
	// sibling's; or the legs' prompt counts disagree by more than a nonce can
	// explain, or only one leg has one.
	CacheSuspected Code = "cache_suspected"
	// CacheNotFlushed: no nonce keeps the prompts apart, and the probe saw that
	// the prefix cache is not emptied, or nothing shows that it was.
	CacheNotFlushed Code = "cache_not_flushed"
	// FlushRefused: the server refused the flush before a leg, and nothing else
	// proves the leg cold.
	FlushRefused Code = "flush_refused"
	// Retracted: the server reports that it preempted a request.
	Retracted Code = "retracted"
	// ModelLoaded: the server loaded the model within a request, so that the
	// request's time is not the model's.
	ModelLoaded Code = "model_loaded"
	// ShortGeneration: fewer tokens than asked for. A doubt where counts are
	// taken as reported.
	ShortGeneration Code = "short_generation"
	// LongGeneration: more tokens than asked for. A doubt where counts are taken
	// as reported.
	LongGeneration Code = "long_generation"
	// CountMissing: the server does not say how many tokens it generated.
	CountMissing Code = "count_missing"
	// NoSecondPoint: leg b generated no more tokens than leg a.
	NoSecondPoint Code = "no_second_point"
	// PromptLength: the prompt did not have the length asked for. A doubt where
	// counts are taken as reported.
	PromptLength Code = "prompt_length"
	// RequestFailed: a request was refused, cut or failed.
	RequestFailed Code = "request_failed"
	// BadTime: a request's time is not a positive finite number.
	BadTime Code = "bad_time"
	// NotConcurrent: the requests of a leg did not all decode at the same time
	// for at least 16 steps, or no stream shows it, or only one whose tokens were
	// held back on the way.
	NotConcurrent Code = "not_concurrent"
	// NotCached: a leg that should have run on a cached prompt did not, or does not
	// say so.
	NotCached Code = "not_cached"
	// CachedDiffers: the legs ran on cached prompts of different lengths.
	CachedDiffers Code = "cached_differs"
	// NoStream: the answer did not stream, arrived at once or a few tokens at a time,
	// or does not say how many tokens each piece holds, where the stream is what is
	// measured.
	NoStream Code = "no_stream"
	// Torn: a leg is missing. Such a pair counts neither as valid nor as invalid.
	Torn Code = "torn"
	// Cancelled: the pair was interrupted by us. Such a pair counts neither as
	// valid nor as invalid.
	Cancelled Code = "cancelled"
)

// Doubts about a pair that stays valid.
const (
	// BufferedStream: the stream arrived at once, or tokens were held back on the way
	// and arrived several together; in-stream figures are nil.
	BufferedStream Code = "buffered_stream"
	// LateEnd: the server held the stream open after the last token. What passed
	// until then is in the two-point prefill time, and not in the slope.
	LateEnd Code = "late_end"
	// NegativeSlope: leg b took no longer than leg a. The pair stays in the mean.
	NegativeSlope Code = "negative_slope"
	// FewSteps: the legs differ by so few forward passes of several tokens each
	// that one pass more or less moves the answer by more than 3 %.
	FewSteps Code = "few_steps"
	// PromptUnreported: the server does not count prompt tokens.
	PromptUnreported Code = "prompt_unreported"
	// PromptDrift: the legs' prompts differ by a few tokens.
	PromptDrift Code = "prompt_drift"
	// CacheUnverified: no cached count is reported and no flush was proven.
	CacheUnverified Code = "cache_unverified"
	// FlushUnavailable: the server has no such flush, or refused it, and the
	// legs count as cold on other grounds.
	FlushUnavailable Code = "flush_unavailable"
)

// Doubts about a point.
const (
	// OrderEffect: pairs that ran leg a first and pairs that ran leg b first
	// differ. A cost falls on whichever request comes first.
	OrderEffect Code = "order_effect"
	// Trend: slopes rise or fall from repeat to repeat, as heat or a filling
	// cache makes them.
	Trend Code = "trend"
	// MedianDisagrees: the mean and the median contradict each other's interval.
	MedianDisagrees Code = "median_disagrees"
	// SecondOpinion: the server's own timings give seconds per token more than 5 %
	// away, and the intervals do not meet.
	SecondOpinion Code = "second_opinion_differs"
	// AcceptLengthDiffers: the variant and the one that it is compared with accept
	// tokens at lengths that differ by more than 5 %, so that only seconds per step
	// compare.
	AcceptLengthDiffers Code = "accept_length_differs"
	// BTooSmall: the b that was given leaves the legs too close for the target. Its
	// code is that of the note in which the runner says so as soon as it shows.
	BTooSmall Code = "b-too-small"
	// OneServerLife: every pair ran in the same life of the server, so that the
	// interval knows nothing of what differs from start to start.
	OneServerLife Code = "one_server_life"
)

// Doubts about a point of the methods multi_point and decode_at_depth.
const (
	// LackOfFit: the times of three or more budgets do not lie on a line, by more
	// than their scatter explains (F test, p < 0.01).
	LackOfFit Code = "lack_of_fit"
	// ColdUnverified: no valid cold pair stands beside the pairs that were measured
	// on a cached prompt.
	ColdUnverified Code = "cold_unverified"
)

// InterceptTooLow is a doubt about a line over context: at no context it leaves less
// than half of the time that reading the weights takes.
const InterceptTooLow Code = "intercept_too_low"

// ColdDisagrees is the reason of an invalid point of decode_at_depth: decode on
// the cached prompt and decode after a cold prefill are not the same.
const ColdDisagrees Code = "cold_disagrees"

// Reasons of an unresolved point. An invalid point has its pairs' commonest
// reason.
const (
	// TooFewPairs: fewer than three valid pairs.
	TooFewPairs Code = "too_few_pairs"
	// TooFewDeployments: fewer than three server lives where the interval is
	// over lives.
	TooFewDeployments Code = "too_few_deployments"
	// WideInterval: the interval's half-width is above a quarter of the
	// expected seconds per token, or above 5 % of the mean where nothing else says
	// what to expect.
	WideInterval Code = "wide_interval"
	// NotPositive: the mean of the slopes is zero or negative.
	NotPositive Code = "not_positive"
)

// Finding is a code with the numbers behind it, in one line.
type Finding struct {
	Code   Code
	Detail string
}

// add keeps one line a code: what a later finding of a code says is added to it.
func add(list []Finding, f Finding) []Finding {
	for i := range list {
		if list[i].Code == f.Code {
			list[i].Detail += "; " + f.Detail
			return list
		}
	}
	return append(list, f)
}

// invalidating is the order in which equally common reasons are named: the
// cause before its consequences.
var invalidating = []Code{
	RequestFailed, ForeignProcess, CacheHit, CacheNotFlushed, FlushRefused, CacheSuspected, Retracted, ModelLoaded, PromptLength,
	NotCached, CachedDiffers, NoStream, CountMissing, NoSecondPoint, ShortGeneration, LongGeneration, NotConcurrent, BadTime,
}
