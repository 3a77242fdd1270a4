function y = onnx_put(y, places, updates, kind)
% Y with UPDATES assigned, added, multiplied, … at places, one after the other.
for i = 1:numel(places)
    k = places(i);
    switch kind
        case 'none'
            y(k) = updates(i);
        case 'add'
            y(k) = y(k) + updates(i);
        case 'mul'
            y(k) = y(k) * updates(i);
        case 'max'
            y(k) = max(y(k), updates(i));
        case 'min'
            y(k) = min(y(k), updates(i));
    end
end
end
