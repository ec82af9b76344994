package runner

import (
	"reflect"
	"time"

	"twopoint/results/event"
	"twopoint/runner/deploy"
)

// apiKey is the secret that servers which want a key are asked with.
const apiKey = "TWOPOINT_API_KEY"

// redactor takes the values of all secrets that the plan names out of a text.
func (a *Agent) redactor() func(string) string {
	secrets := map[string]string{}
	for _, v := range a.Order.Plan.Variants {
		for _, env := range v.Env {
			if value, ok := a.Secret(env.Secret); ok && env.Secret != "" {
				secrets[env.Secret] = value
			}
		}
	}
	if key, ok := a.Secret(apiKey); ok {
		secrets[apiKey] = key
	}
	return deploy.Redactor(secrets)
}

// scrub takes secrets out of every text of an event, whoever wrote it: servers
// repeat their settings, their environment and the requests that they refuse.
func scrub(e *event.Event, redact func(string) string) {
	if redact != nil {
		scrubValue(reflect.ValueOf(e).Elem(), redact)
	}
}

func scrubValue(v reflect.Value, redact func(string) string) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() && v.Len() > 0 {
			v.SetString(redact(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			scrubValue(v.Elem(), redact)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			scrubValue(v.Field(i), redact)
		}
	case reflect.Slice:
		switch v.Type().Elem().Kind() {
		case reflect.String, reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Map, reflect.Interface: // the others hold no text
			for i := range v.Len() {
				scrubValue(v.Index(i), redact)
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, scrubbed(v.MapIndex(key), redact))
		}
	case reflect.Interface:
		if !v.IsNil() && v.CanSet() {
			v.Set(scrubbed(v.Elem(), redact))
		}
	}
}

// scrubbed is a copy of what cannot be changed where it is.
func scrubbed(v reflect.Value, redact func(string) string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	scrubValue(out, redact)
	return out
}
