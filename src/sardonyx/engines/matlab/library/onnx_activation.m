function y = onnx_activation(x, kind)
% An activation of a recurrent layer.
switch lower(kind)
    case 'sigmoid'
        y = 1 ./ (1 + exp(-x));
    case 'tanh'
        y = tanh(x);
    case 'relu'
        y = max(x, 0);
    case 'softsign'
        y = x ./ (1 + abs(x));
    case 'softplus'
        y = log1p(exp(-abs(x))) + max(x, 0);
    case 'affine'
        y = x;
end
end
